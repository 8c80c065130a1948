"""SCAFFOLD and FedDyn end at the optimum of all data, whatever the local steps; FedAvg does not."""

from dataclasses import replace

import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from small_apps import answering
from torch import nn

from fedbary.errors import SettingError
from fedbary.inference import INFERENCE, Training, local_method, prepare
from fedbary.methods import Local, Reply, Server
from fedbary.methods._method import part_of_all
from fedbary.methods.barycentre import Barycentre
from fedbary.methods.fedavgm import FedAvgM
from fedbary.methods.feddyn import FedDyn
from fedbary.methods.scaffold import SCAFFOLD
from fedbary.runs.memory import Memory
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import Client, strategy_for
from fedbary.strategies import Federation as Known
from fedbary.strategies.compression import CompressedGrid, compression
from fedbary.variational.layers import variational

FEDAVG = FedAvgM(server_momentum=0.0)
RATE = 0.1
PLAIN = Training(epochs=4, batch_size=1000, lr=RATE, momentum=0.0)
SIZES = (20, 30, 60)


def line():
    return nn.Linear(3, 1, bias=False).double()


def squares(outputs, targets):
    return nn.functional.mse_loss(outputs[:, 0], targets)


def clients(seed):
    """Data of clients of different sizes, curvatures and optima."""
    generator = torch.Generator().manual_seed(seed)
    data = []
    for number, size in enumerate(SIZES):
        x = torch.randn(size, 3, generator=generator).double() * torch.tensor([1.0, 0.8, 1.3])
        own = torch.randn(3, generator=generator).double() * 3
        data.append((x.roll(number, 1), x.roll(number, 1) @ own))
    return data


def moments(x, y):
    """The curvature and the pull of a client's mean squared error."""
    return 2 * x.t() @ x / len(x), 2 * x.t() @ y / len(x)


def optimum(data, weight_decay=0.0):
    """The least of the mean squared error of all data, and of ½ decay ‖θ‖²."""
    parts, weights = [moments(x, y) for x, y in data], [size / sum(SIZES) for size in SIZES]
    curvature = sum(w * h for w, (h, _) in zip(weights, parts, strict=True))
    curvature = curvature + weight_decay * torch.eye(3).double()
    pull = sum(w * b for w, (_, b) in zip(weights, parts, strict=True))
    return torch.linalg.solve(curvature, pull)


class Federation:
    """A method's rounds on clients' data, without Flower."""

    def __init__(self, method, data, make=line, nll=squares, inference="variational"):
        self.method, self.data, self.make, self.nll = method, data, make, nll
        self.inference = local_method(inference)
        torch.manual_seed(0)
        self.model = {name: t.detach().clone() for name, t in make().state_dict().items()}
        self.state, self.kept = method.start(self.model), [{} for _ in data]

    def round(self, number, turn, training):
        total = sum(len(x) for x, _ in self.data)
        server = Server(self.model, self.state, number, examples=total, clients=len(self.data))
        replies = []
        for k in turn:
            x, y = self.data[k]
            local = Local(
                self.make(), x, y, self.nll, self.inference,
                replace(training, kl_weight=len(x) / total), round=number, seed=number,
                share=len(x) * len(self.data) / total,
            )  # fmt: skip
            sent = self.method.send(server, str(k))
            fitted = self.method.fit(local, sent, self.kept[k])
            expected = self.method.reply_like(self.model)
            assert {n: (t.shape, t.dtype) for n, t in fitted.reply.items()} == {
                n: (t.shape, t.dtype) for n, t in expected.items()
            }
            self.kept[k] = fitted.kept
            replies.append(Reply(str(k), float(len(x)), fitted.reply))
        self.model, self.state = self.method.aggregate(server, replies)

    def rounds(self, count, training=PLAIN, turn=None):
        for number in range(1, count + 1):
            self.round(number, turn or range(len(self.data)), training)
        return self.model["weight"][0] if "weight" in self.model else self.model


@settings(max_examples=3)
@given(st.integers(0, 10**6))
def test_fedavg_stands_still_elsewhere_than_at_the_optimum(seed):
    """At Σ w_k (I − A_k)(θ − θ_k) = 0 with A_k = (I − η H_k)⁴, which is no optimum."""
    data, eye = clients(seed), torch.eye(3).double()
    weights = [size / sum(SIZES) for size in SIZES]
    total, pull = torch.zeros(3, 3).double(), torch.zeros(3).double()
    for weight, (x, y) in zip(weights, data, strict=True):
        curvature, towards = moments(x, y)
        moved = eye - torch.linalg.matrix_power(eye - RATE * curvature, 4)
        total += weight * moved
        pull += weight * moved @ torch.linalg.solve(curvature, towards)
    exact = torch.linalg.solve(total, pull)
    torch.testing.assert_close(Federation(FEDAVG, data).rounds(60), exact, rtol=1e-5, atol=1e-6)
    assert (exact - optimum(data)).norm() > 1e-3


@settings(max_examples=3)
@given(
    st.integers(0, 10**6),
    st.sampled_from([SCAFFOLD(), FedDyn(1.0)]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 0.1]),
)
def test_the_fixed_point_is_the_optimum_of_all_data(seed, method, momentum, weight_decay):
    data, training = clients(seed), replace(PLAIN, momentum=momentum, weight_decay=weight_decay)
    found = Federation(method, data).rounds(150, training)
    torch.testing.assert_close(found, optimum(data, weight_decay), rtol=1e-5, atol=1e-6)


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()


def classes(seed, sizes):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 3, generator=generator).double(), torch.arange(n) % 2) for n in sizes]


@pytest.mark.parametrize("bound", [None, 0.1])
def test_scaffold_of_one_client_is_sgd(bound):
    """In mini-batches, with momentum and batch norm: what it corrects by is 0."""
    training = Training(2, 8, lr=0.1, momentum=0.9, weight_decay=0.01, max_grad_norm=bound)
    data, nll = classes(0, [30]), nn.functional.cross_entropy
    one = Federation(SCAFFOLD(), data, network, nll).rounds(4, training)
    other = Federation(FEDAVG, data, network, nll).rounds(4, training)
    for name, tensor in other.items():
        torch.testing.assert_close(one[name], tensor)


def gaussian_line():
    return variational(line(), 1)


@settings(max_examples=2)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 0.1]))
def test_means_by_curvature_end_at_the_optimum_under_scaffold_alone(seed, momentum, weight_decay):
    """The optimum of all data and the prior N(0, 1): the mode of the posterior."""
    data, training = clients(seed), replace(PLAIN, momentum=momentum, weight_decay=weight_decay)
    exact, found = optimum(data, weight_decay + 1 / sum(SIZES)), {}
    for method, rounds in ((SCAFFOLD(), 150), (Barycentre(), 30)):
        federation = Federation(method, data, gaussian_line, squares, "curvature")
        federation.rounds(rounds, training)
        found[method.name] = federation.model["weight_mean"][0]
    torch.testing.assert_close(found["SCAFFOLD"], exact, rtol=1e-5, atol=1e-6)
    assert (found["barycentre"] - exact).norm() > 1e-3


def gaussian_network():
    made = variational(network(), 2)
    prepare("curvature", made)
    return made


@pytest.mark.parametrize("inference", sorted({*INFERENCE} - {"laplace"}))
def test_scaffold_of_posteriors_is_the_barycentre_until_clients_have_variates(inference):
    """Of a single client always: what it corrects by is 0."""
    training = Training(2, 16, lr=0.05, momentum=0.5, log_var_lr=0.01)
    given = gaussian_network, nn.functional.cross_entropy, inference
    for sizes, rounds in ((SIZES, 1), ([30], 3)):
        data = classes(1, sizes)
        one = Federation(SCAFFOLD(), data, *given).rounds(rounds, training)
        other = Federation(Barycentre(), data, *given).rounds(rounds, training)
        assert {name for name in one if name.endswith("_log_var")}
        for name, tensor in other.items():
            torch.testing.assert_close(one[name], tensor)


def test_scaffold_refuses_an_inference_that_takes_no_corrected_step():
    for inference in (lambda local: {"train_nll": 0.0}, local_method("laplace")):
        local = Local(line().float(), torch.ones(4, 3), torch.ones(4), squares, inference)
        sent = {**local.state(), **SCAFFOLD().start(local.state())}
        with pytest.raises(SettingError, match="inference: 'without steps'; expected .*correct"):
            SCAFFOLD().fit(local, sent, {})


@settings(max_examples=5)
@given(st.integers(0, 10**6), st.floats(0.2, 1.2))
def test_one_whole_step_of_scaffold_s_clients_is_one_of_gradient_descent(seed, server_lr):
    data, weights = clients(seed), [size / sum(SIZES) for size in SIZES]
    federation = Federation(SCAFFOLD(server_lr), data)
    central = federation.model["weight"][0].clone()
    for number in range(1, 5):
        federation.round(number, range(3), replace(PLAIN, epochs=1))
        gradient = sum(
            w * (h @ central - b)
            for w, (h, b) in zip(weights, (moments(*part) for part in data), strict=True)
        )
        central -= server_lr * RATE * gradient
        torch.testing.assert_close(federation.model["weight"][0], central)


@settings(max_examples=10)
@given(st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=1, max_size=5))
def test_the_server_s_variate_is_the_mean_of_the_clients_whoever_takes_part(turns):
    """By size under SCAFFOLD, whose clients' Δ are weighed so; plainly under FedDyn."""
    for method, word, make in (
        (SCAFFOLD(0.7), "control/", network),
        (SCAFFOLD(0.7), "control/", gaussian_network),
        (FedDyn(0.3), "drift/", network),
    ):
        inference = "variational" if make is network else "curvature"
        given = make, nn.functional.cross_entropy, inference
        federation = Federation(method, classes(1, SIZES), *given)
        for number, turn in enumerate(turns, 1):
            federation.round(number, sorted(turn), Training(1, 16, lr=0.05))
        sizes = SIZES if word == "control/" else (1, 1, 1)
        every = (name for name, _ in make().named_parameters())
        names = {f"{word}{name}" for name in every if not name.endswith("_log_var")}
        assert federation.state.keys() == names  # none of a buffer or a log-variance
        for name in names:
            held = [kept.get(name, torch.zeros(())) for kept in federation.kept]
            whole = sum(size * each for size, each in zip(sizes, held, strict=True))
            torch.testing.assert_close(federation.state[name], whole / sum(sizes))


def test_in_the_first_round_buffers_are_fedavg_s_and_what_does_not_train_stays():
    def half_frozen():
        made = network()
        made[0].requires_grad_(False)
        return made

    training, nll = Training(1, 16, lr=0.05), nn.functional.cross_entropy
    data = classes(1, SIZES)
    plain = Federation(FEDAVG, data, half_frozen, nll).rounds(1, training)
    for method in (SCAFFOLD(), FedDyn()):
        federation = Federation(method, data, half_frozen, nll)
        before = federation.model["0.weight"]
        federation.rounds(1, training)
        if method == SCAFFOLD():
            for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
                torch.testing.assert_close(federation.model[name], plain[name])
        federation.rounds(2, training)
        torch.testing.assert_close(federation.model["0.weight"], before)


def over_flower(name, folder, spoiled, rounds, compressed, make):
    """Run a strategy, its grid packed or not; some replies of some rounds are not finite."""
    data = clients(3)
    inference = "variational" if make is line else "curvature"

    def client(k):
        training = replace(PLAIN, kl_weight=SIZES[k] / sum(SIZES))
        own = {"nll": squares, "keep_in": folder / str(k), "inference": inference}
        return Client(make(), *data[k], training, **own)

    app = answering(client, spoiled, mods=[compression])
    tell = lambda: {"all-examples": sum(SIZES), "all-clients": 3}  # noqa: E731
    own = {"strength": 1.0} if name == "FedDyn" else {}
    strategy = strategy_for(name)(
        **own,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=1,
        federation=Known(tell=tell),
    )
    grid = InlineGrid(app, 3, {})
    torch.manual_seed(0)
    result = strategy.start(
        grid=CompressedGrid(grid) if compressed else grid,
        initial_arrays=ArrayRecord(make().state_dict()),
        num_rounds=rounds,
    )
    return strategy, result.arrays.to_torch_state_dict()


@pytest.mark.in_turn
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("name", "make", "weight"),
    [
        ("SCAFFOLD", line, "control/weight"),
        ("SCAFFOLD", gaussian_line, "control/weight_mean"),
        ("FedDyn", line, "drift/weight"),
    ],
)
def test_over_flower_refused_replies_and_packed_arrays_leave_no_bias(
    name, make, weight, compressed, tmp_path
):
    spoiled = {(0, 2), (1, 3), (2, 3), (1, 7)}
    strategy, found = over_flower(name, tmp_path, spoiled, 50, compressed, make)
    assert len(strategy.refusals) == len(spoiled)
    exact = optimum(clients(3), 0.0 if make is line else 1 / sum(SIZES))
    torch.testing.assert_close(found[weight.partition("/")[2]][0], exact, rtol=0, atol=0.05)
    state, held = strategy.state_dict(), []
    for k in range(3):
        (run,) = (tmp_path / str(k)).iterdir()
        admitted = int(state[f"kept.{k + 2}"])
        held.append(Memory(run).recall(admitted)[weight])
    shares = [n / sum(SIZES) for n in SIZES] if name == "SCAFFOLD" else [1 / 3] * 3
    mean = sum(share * tensor for share, tensor in zip(shares, held, strict=True))
    exact_mean = name == "SCAFFOLD" or not compressed
    torch.testing.assert_close(
        state[f"method.{weight}"], mean, rtol=0, atol=1e-9 if exact_mean else 0.05
    )


@given(st.lists(st.integers(1, 99), min_size=1, max_size=6), st.data())
def test_the_part_of_a_round_is_of_examples_else_of_clients_else_whole(sizes, data):
    taken = data.draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=len(sizes)))
    replies = [Reply(str(k), float(size), {}) for k, size in enumerate(taken)]
    total = max(sum(sizes), sum(taken))
    server = Server({}, {}, examples=total, clients=len(sizes))
    assert part_of_all(server, replies) == sum(taken) / total
    assert part_of_all(replace(server, examples=0), replies) == len(taken) / len(sizes)
    assert part_of_all(Server({}, {}), replies) == 1


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedDyn"])
def test_what_their_clients_keep_is_not_taken_for_a_model(name):
    with pytest.raises(SettingError, match="keep_models.*no model"):
        strategy_for(name)(keep_models=True)
