"""What holds for every method as a Flower strategy: refusals, the order of replies, resume."""

import copy
import inspect
from importlib import import_module

import pytest
import runs_of
import torch
from every_method import EACH, EVEN, NIGHT, ODD, OF_CLASSES, night
from flwr.app import Array, ArrayRecord, ConfigRecord
from refusals import refused
from small_apps import answering
from torch import nn

from fedbary import strategies
from fedbary.aggregation import RULES
from fedbary.inference import Training
from fedbary.methods import METHODS, Bench, Reply, Server, method_named
from fedbary.parts.parameters import declared
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import Client, Federation
from fedbary.strategies.arrays import Blanks, bytes_of
from fedbary.strategies.conventions import Convention, Names
from fedbary.variational.layers import VariationalLinear, reset_layer

KEEP_IN = None
CLIENTS, ROUNDS = 4, 4
TRAINING = Training(epochs=3, batch_size=8, lr=0.01, kl_weight=1.0)
POINT = sorted(name for name, method in METHODS.items() if method.deterministic)
GAUSSIAN = sorted(METHODS.keys() - POINT)


@pytest.mark.parametrize("name", [*METHODS, *RULES])
def test_a_strategy_class_is_where_its_name_says(name):
    """So another process, to which its name is sent, finds it."""
    kind = strategies.strategy_for(name)
    assert getattr(import_module(kind.__module__), kind.__qualname__) is kind


def test_no_method_calls_a_parameter_as_every_strategy_calls_an_argument():
    kinds = [kind for kind in strategies.strategy_for("DWC").__mro__ if "__init__" in vars(kind)]
    words = {word for kind in kinds for word in inspect.signature(kind.__init__).parameters}
    assert {"prior_arrays", "seed", "fraction_train"} <= words
    assert {name: both for name, m in METHODS.items() if (both := words & declared(m).keys())} == {}


def network(name):
    torch.manual_seed(0)
    layer = nn.Linear(3, 2) if name in POINT else VariationalLinear(3, 2)
    if name not in POINT:
        reset_layer(layer, -4.0, torch.Generator().manual_seed(0))
    return nn.Sequential(layer, nn.BatchNorm1d(2))


def data(k):
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(16 + 8 * k, 3, generator=generator)
    return x, (x[:, 0] > x[:, 1]).long()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where clients keep things; runs in it are told apart by themselves."""
    monkeypatch.setitem(globals(), "KEEP_IN", tmp_path)


def client_app(name, spoiled=(), mods=()):
    return answering(
        lambda k: Client(network(name), *data(k), TRAINING, keep_in=KEEP_IN / str(k)),
        spoiled,
        mods=mods,
    )


def bench(name):
    """What the server has where the method learns there: examples of no client."""
    if METHODS[name].needs_bench:
        return Bench(network(name), *data(CLIENTS), nn.functional.cross_entropy)
    return None


FEW = {
    "DSVGD": {"particles": 5, "server_steps": 20},
    "SGHMC": {"thinning": 2}, "SGLD": {"thinning": 2}, "PredBayes": {"thinning": 2},
}  # fmt: skip
"""Parameters by which methods take few steps at the server, and few rounds."""


def strategy(name, **changes):
    changes = {"bench": bench(name), **FEW.get(name, {}), **changes}
    return getattr(strategies, name)(
        fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1, **changes
    )


def run(name, rounds=ROUNDS, start=None, chosen=None, **kwargs):
    chosen = chosen or strategy(name)
    grid = InlineGrid(client_app(name, **kwargs), CLIENTS, {})
    arrays = start or ArrayRecord(network(name).state_dict())
    result = chosen.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
    return chosen, result.arrays


def same(one, other):
    return runs_of.same(one.to_torch_state_dict(), other.to_torch_state_dict())


@night
@pytest.mark.parametrize("name", ["FedHB", "FedPop"])
def test_three_hundred_rounds_stay_finite(name):
    """What these methods learn of the clients' spread goes on from round to round."""
    chosen, arrays = run(name, rounds=300)
    held = [*arrays.to_torch_state_dict().values(), *chosen.state_dict().values()]
    assert chosen.refusals == [] and all(tensor.isfinite().all() for tensor in held)


SLOW = {"pFedBayes": (12, {"global_lr": 0.05}), "FedPop": (60, {})}
"""Rounds and parameters by which methods of small steps learn so little data."""

WITHOUT_NORMS = {"FedBN"}
"""Methods whose global model has no moments for batch norm: it takes those of the data."""


@pytest.mark.parametrize("name", EVEN)
def test_a_federation_learns(name):
    rounds, parameters = SLOW.get(name, (12, {}))
    _, arrays = run(name, rounds=rounds, chosen=strategy(name, **parameters))
    model = network(name)
    model.load_state_dict(arrays.to_torch_state_dict())
    model.train(name in WITHOUT_NORMS)
    x, y = (torch.cat(parts) for parts in zip(*map(data, range(CLIENTS)), strict=True))
    assert (model(x).argmax(1) == y).float().mean() > 0.8


@pytest.mark.parametrize("name", EVEN)
def test_a_refused_reply_leaves_a_federation_as_if_that_client_had_been_away(name):
    chosen, arrays = run(name, spoiled=[(1, 2)])
    assert [refusal.round for refusal in chosen.refusals] == [2]
    assert all(tensor.isfinite().all() for tensor in arrays.to_torch_state_dict().values())
    nodes = range(2, 2 + CLIENTS)  # as the grid numbers them

    def without_one(server_round):
        return [node for node in nodes if (node, server_round) != (3, 2)]

    _, away = run(name, chosen=strategy(name, federation=Federation(trainers=without_one)))
    assert same(arrays, away)


@pytest.mark.parametrize("name", ODD)
def test_the_order_of_replies_and_of_nodes_is_irrelevant(name):
    _, forwards = run(
        name, chosen=strategy(name, federation=Federation(trainers=lambda _: [2, 3, 4, 5]))
    )
    _, backwards = run(
        name, chosen=strategy(name, federation=Federation(trainers=lambda _: [5, 4, 3, 2]))
    )
    assert same(forwards, backwards)


@pytest.mark.parametrize("name", EACH)
def test_an_aggregate_does_not_write_to_what_it_is_given(name):
    model = {key: tensor.clone() for key, tensor in network(name).state_dict().items()}
    method = method_named(name)()
    state = method.start(model)
    sound = method.reply_like(model)
    replies = [
        Reply(str(k), 1.0 + k, {key: t.clone() for key, t in sound.items()}) for k in range(3)
    ]
    given = copy.deepcopy((model, state, [reply.tensors for reply in replies]))
    method.aggregate(Server(model, state, bench=bench(name)), replies)
    now = (model, state, [reply.tensors for reply in replies])
    assert all(
        torch.equal(a[key], b[key])
        for a, b in zip([given[0], given[1], *given[2]], [now[0], now[1], *now[2]], strict=True)
        for key in a
    )


OF_ONE_KIND = [name for name in OF_CLASSES if METHODS[name].deterministic is not None]


@pytest.mark.parametrize("name", OF_ONE_KIND)
def test_a_model_of_the_other_kind_is_refused_by_name(name):
    other = (GAUSSIAN if name in POINT else POINT)[0]
    refused(name, lambda: run(name, start=ArrayRecord(network(other).state_dict())))


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].needs_bench])
def test_a_method_that_learns_at_the_server_asks_for_examples_there(name):
    refused(f"bench.*{name}", strategy, name, bench=None)


def test_parameters_travel_to_the_client():
    chosen = strategy("FedPA", burn_in=3)
    grid = InlineGrid(client_app("FedPA"), CLIENTS, {})
    arrays = ArrayRecord(network("FedPA").state_dict())
    with pytest.raises(Exception, match="skipped|no round"):
        chosen.start(grid=grid, initial_arrays=arrays, num_rounds=3)
    assert "local_epochs" in chosen.refusals[0].reason


@pytest.mark.parametrize("rule", ["RKLB", "WB", "Median"])
def test_a_client_that_answers_by_train_federates_under_a_rule_s_strategy_too(rule):
    chosen = getattr(strategies, rule)(
        fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1
    )
    _, arrays = run("barycentre", chosen=chosen)
    assert not chosen.refusals
    _, named = run("barycentre", chosen=strategy("barycentre", rule=rule))
    assert same(arrays, named)


def foreign(convention):
    """A client mod for a model whose arrays are in a convention, at a client that trains ours."""

    def mod(message, context, call_next):
        received = message.content.array_records["arrays"]
        names = Names(received.keys(), convention)
        message.content["arrays"] = ArrayRecord(dict(names.read(received)))
        reply = call_next(message, context)
        trained = reply.content.array_records["arrays"].to_torch_state_dict()
        reply.content["arrays"] = names.write(trained, received, Blanks())
        return reply

    return mod


@pytest.mark.parametrize("unit", ["log_var", "std", "rho"] if NIGHT else ["rho"])
@pytest.mark.parametrize("name", sorted({*EACH}.intersection(GAUSSIAN)))
def test_a_model_of_other_names_and_units_federates_under_every_method(name, unit):
    convention = Convention("*.loc", "*.scale", unit)
    ours = ArrayRecord(network(name).state_dict())
    theirs = ArrayRecord()
    for key, tensor in network(name).state_dict().items():
        if key.endswith("_log_var"):
            key, tensor = key.replace("_log_var", ".scale"), convention.from_log_var(tensor)
        elif key.startswith("0."):
            key = key.replace("_mean", ".loc")
        theirs[key] = Array(tensor.numpy())
    _, expected = run(name, start=ours)
    chosen = strategy(name, convention=convention)
    _, found = run(name, start=theirs, chosen=chosen, mods=[foreign(convention)])
    assert list(found) == list(theirs) and not chosen.refusals
    read = dict(Names(found.keys(), convention).read(found))
    for key, tensor in expected.to_torch_state_dict().items():
        torch.testing.assert_close(read[key], tensor, rtol=1e-4, atol=1e-4)


class Heard:
    """A listener that keeps how much clients are sent."""

    def asked(self, contents):
        self.sent = [bytes_of(content) for content in contents]

    def trained(self, replies, tensors):
        """Hear nothing of replies."""


@pytest.mark.parametrize("name", EACH)
def test_a_listener_hears_all_that_clients_are_sent(name):
    heard, received = Heard(), []

    def mod(message, context, call_next):
        received.append(bytes_of(message.content))
        return call_next(message, context)

    chosen = strategy(name, federation=Federation(listener=heard))
    run(name, rounds=1, chosen=chosen, mods=[mod])
    assert sorted(heard.sent) == sorted(received) and len(received) == CLIENTS
    if name == "PVI":
        assert received[0] > ArrayRecord(network(name).state_dict()).count_bytes()


@pytest.mark.parametrize("name", EACH)
def test_what_all_clients_score_lies_in_memory_once(name):
    """A copy for each would be thousands of models; a group has one."""
    chosen = strategy(name)
    _, arrays = run(name, rounds=1, chosen=chosen)
    chosen.fraction_evaluate = 1.0
    grid = InlineGrid(client_app(name), CLIENTS, {})
    messages = list(chosen.configure_evaluate(1, arrays, ConfigRecord(), grid))
    assert len({message.metadata.dst_node_id for message in messages}) == CLIENTS
    record, *others = {id(r): r for r in (m.content["arrays"] for m in messages)}.values()
    assert len(others) == max(0, len({*chosen.groups.values()}) - 1)
    assert not METHODS[name].shows or record.keys() > arrays.keys()
