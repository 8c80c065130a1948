"""A real ClientApp whose clients move a posterior, reproducibly, in any convention."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from strategies_replies import state

from fedbary import Posterior
from fedbary.aggregation import aggregate
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import CONVENTIONS, Convention, arrays_from_posterior, posterior_from_arrays

CLIENTS = 4
EQUAL = ConfigRecord({"equal": True})
TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-13}

KEYS = {
    "fedbary": ("w_mean", "w_log_var"),
    "bayesian-torch": ("fc.mu_weight", "fc.rho_weight"),
    "scale": ("w.loc", "w.scale"),
}
"""The keys of a Gaussian tensor in some conventions."""


def initial(convention: str = "fedbary", dtype: torch.dtype = torch.float32) -> ArrayRecord:
    """A small global posterior with plain weights and, in fedbary's names, an integer buffer."""
    if convention == "fedbary":
        like = state(0)
    else:
        generator = torch.Generator().manual_seed(0)
        mean_key, scale_key = KEYS[convention]
        like = {
            "bias": torch.randn(3, generator=generator),
            mean_key: torch.randn(5, 4, generator=generator),
            scale_key: torch.rand(5, 4, generator=generator) + 0.1,
        }
    return ArrayRecord({k: v.to(dtype) if v.is_floating_point() else v for k, v in like.items()})


def moved(posterior: Posterior, seed: int) -> Posterior:
    """A posterior a step away: means and log-variances moved at random, counts by one."""
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor):
        return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)

    mean = {
        name: 0.7 * mean + 0.3 * noise(mean) if mean.is_floating_point() else mean + 1
        for name, mean in posterior.mean.items()
    }
    log_var = {name: v + 0.3 * noise(v) for name, v in posterior.log_var.items()}
    return Posterior(mean, log_var)


def client_app(convention: str | Convention = "fedbary", mods=(), train_mods=()) -> ClientApp:
    """Clients that train by `moved`, of unequal weights unless the config has "equal" true.

    Training reports the config's "proximal-mu" as it arrived, evaluation the sum of the arrays.
    """
    app = ClientApp(mods=list(mods))
    if isinstance(convention, str):
        convention = CONVENTIONS[convention]

    @app.train(mods=list(train_mods))
    def train(message, context):
        arrays, config = message.content["arrays"], message.content["config"]
        partition = context.node_config["partition-id"]
        posterior = moved(
            posterior_from_arrays(arrays, convention), 100 * config["server-round"] + partition
        )
        metrics = {
            "num-examples": 1 if config.get("equal") else 1 + partition,
            "partition-id": partition,
            "proximal-mu": config.get("proximal-mu", -1.0),
        }
        content = {
            "arrays": arrays_from_posterior(posterior, convention, arrays),
            "metrics": MetricRecord(metrics),
        }
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        metrics = {"num-examples": 1, "sum": checksum(message.content["arrays"])}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def checksum(arrays: ArrayRecord) -> float:
    return sum(float(array.numpy().sum()) for array in arrays.values())


def grid(*args, **kwargs) -> InlineGrid:
    """An in-process federation of `client_app`'s clients."""
    return InlineGrid(client_app(*args, **kwargs), CLIENTS, {})


def floating(arrays):
    """The arrays that Flower's clipping clips: floating, with at least one dimension."""
    return ArrayRecord({k: v for k, v in arrays.items() if "float" in v.dtype and v.shape})


def round_of(rule, arrays, server_round, clients, weights=None):
    """The posterior after a round of these clients."""
    posterior = posterior_from_arrays(arrays, CONVENTIONS["fedbary"])
    replies = [moved(posterior, 100 * server_round + k) for k in clients]
    return aggregate(rule, replies, weights or [1 + k for k in clients])


def assert_posterior(arrays, expected, tolerance=1e-5):
    """Arrays hold a posterior, up to rounding."""
    found = posterior_from_arrays(arrays, CONVENTIONS["fedbary"])
    assert found.mean.keys() == expected.mean.keys()
    for part, wanted in ((found.mean, expected.mean), (found.log_var, expected.log_var)):
        for name, tensor in wanted.items():
            torch.testing.assert_close(part[name], tensor, rtol=tolerance, atol=tolerance)


def assert_close(arrays, expected, dtype=torch.float32):
    """Arrays have the names, order, dtypes and, up to rounding, values of others."""
    assert list(arrays) == list(expected)
    for key, array in expected.items():
        value, wanted = arrays[key].numpy(), array.numpy()
        assert value.dtype == wanted.dtype
        tolerance = TOLERANCE[dtype]
        np.testing.assert_allclose(value, wanted, rtol=tolerance, atol=tolerance, err_msg=key)


class Curious(FedAvg):
    """Flower's own, with an eye on the arrays of each reply."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seen = []

    def aggregate_train(self, server_round, messages):
        messages = list(messages)
        self.seen += [message.content["arrays"] for message in messages]
        return super().aggregate_train(server_round, messages)


def masking_mod(message, context, call_next):
    """Pairwise masks, as in secure aggregation: they cancel in the weighted sum of all clients."""
    reply = call_next(message, context)
    if "arrays" not in reply.content:
        return reply
    me, weight = context.node_config["partition-id"], reply.content["metrics"]["num-examples"]
    masked = {key: array.numpy() for key, array in reply.content["arrays"].items()}
    for other in set(range(CLIENTS)) - {me}:
        rng = np.random.default_rng([min(me, other), max(me, other)])
        sign = 1 if me < other else -1
        for key, value in masked.items():
            masked[key] = (value + sign * 1000 * rng.standard_normal(value.shape) / weight).astype(
                value.dtype
            )
    arrays = {key: Array(np.asarray(value)) for key, value in masked.items()}
    reply.content["arrays"] = ArrayRecord(arrays)
    return reply
