"""The Flower ClientApp: receive the global posterior, fit it to the local data, reply; evaluate.

The app keeps nothing of a run in itself. Data set, split and network are cached per process by
`fedbary.federation` and here, so a Ray actor makes them once and serves every client from them.
"""

from __future__ import annotations

import time
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedbary import Posterior
from fedbary.attacks import ATTACKS, hostile_clients
from fedbary.config import Settings, resolve_run_config
from fedbary.federation import augments, client_shard, evaluation_data, load_dataset, make_model
from fedbary.inference import Training, local_method
from fedbary.metrics import evaluate as score
from fedbary.models import BayesianCNN
from fedbary.prediction import predict
from fedbary.seeds import derive_seed

torch.backends.cudnn.deterministic = True

app = ClientApp()

_model = lru_cache(maxsize=2)(make_model)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which partition this node holds, how much it trains on, and how many of each class."""
    settings, client, clients = _settings(context)
    shard = client_shard(settings, clients, client)
    counts = torch.bincount(
        torch.cat([shard.y, shard.y_held_out]), minlength=load_dataset(settings).num_classes
    )
    reply = MetricRecord(
        {
            "partition-id": client,
            "num-partitions": clients,
            "num-examples": len(shard.y),
            "label-counts": counts.tolist(),
        }
    )
    return Message(RecordDict({"metrics": reply}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Fit the global posterior to the client's data and reply with the client's posterior."""
    settings, client, clients = _settings(context)
    server_round = _round(message)
    shard = client_shard(settings, clients, client)
    model = _received(message, settings)
    prior: Posterior | float = settings.prior_std
    if settings.prior == "global" and server_round > 1:
        prior = Posterior.from_state_dict({k: v.clone() for k, v in model.state_dict().items()})
    training = Training(
        epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        lr=settings.lr_of(server_round),
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        log_var_lr=settings.log_var_lr,
        kl_weight=settings.kl_weight,
    )
    start = time.perf_counter()
    fitted = local_method(settings.inference)(
        model,
        shard.x,
        shard.y,
        prior,
        training,
        derive_seed(settings.seed, "train", client, server_round),
        augment=augments(settings),
    )
    metrics: dict[str, int | float] = {
        "num-examples": len(shard.y),
        "partition-id": client,
        "train-seconds": time.perf_counter() - start,
        "train-nll": fitted["train_nll"],
        "kl": fitted["kl"],
    }
    if settings.measures_clients(server_round):
        x, y = evaluation_data(settings)
        for name, value in _score(model, x, y, settings, client, server_round).items():
            metrics[f"local-{name}"] = value
    arrays = ArrayRecord(_sent(model, message, settings, client, clients))
    reply = RecordDict({"arrays": arrays, "metrics": MetricRecord({**metrics})})
    return Message(reply, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score the global posterior on the examples that the client holds out."""
    settings, client, clients = _settings(context)
    shard = client_shard(settings, clients, client)
    model = _received(message, settings)
    scores = _score(model, shard.x_held_out, shard.y_held_out, settings, client, _round(message))
    metrics = MetricRecord(
        {"num-examples": len(shard.y_held_out), "partition-id": client, **scores}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _settings(context: Context) -> tuple[Settings, int, int]:
    """Return the run's settings, this node's partition and the number of partitions."""
    settings = _resolve(tuple(sorted(context.run_config.items())))
    torch.set_num_threads(settings.cpus_per_client)
    client, clients = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    return settings, client, clients


@lru_cache(maxsize=4)
def _resolve(run_config: tuple[tuple[str, str | int | float | bool], ...]) -> Settings:
    return resolve_run_config(dict(run_config))


def _round(message: Message) -> int:
    return int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]


def _received(message: Message, settings: Settings) -> BayesianCNN:
    """Return the process's network, holding the posterior that the message carries."""
    model = _model(settings)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return model


def _sent(
    model: BayesianCNN, message: Message, settings: Settings, client: int, clients: int
) -> dict[str, torch.Tensor]:
    """Return the state that the client sends: the fitted one, or what its attack makes of it."""
    fitted = model.state_dict()
    hostile = hostile_clients(settings.hostile_fraction, clients, settings.seed)
    if settings.attack == "none" or client not in hostile:
        return fitted
    received = message.content.array_records["arrays"].to_torch_state_dict()
    posteriors = [
        Posterior.from_state_dict({key: tensor.cpu() for key, tensor in state.items()})
        for state in (received, fitted)
    ]
    return ATTACKS[settings.attack](*posteriors).state_dict()


def _score(
    model: BayesianCNN,
    x: torch.Tensor,
    y: torch.Tensor,
    settings: Settings,
    client: int,
    server_round: int,
) -> dict[str, float]:
    device = next(model.parameters()).device
    seed = derive_seed(settings.seed, "predict", client, server_round)
    generator = torch.Generator(device).manual_seed(seed)
    prediction = predict(model, x, settings.samples, generator)
    return score(prediction.probs, y, settings.ece_bins)
