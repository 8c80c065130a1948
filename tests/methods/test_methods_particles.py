"""SVGD's particles sample a known posterior, at one client and at several."""

import math

import pytest
import torch
from linear_gaussian import NOISE_VAR, clients, double
from refusals import refused
from torch import nn

from fedbary.inference import Training, local_method
from fedbary.methods import Local, Reply, Server, _method, method_named
from fedbary.methods.dsvgd import DSVGD
from fedbary.methods.fedwba import FedWBA, barycentre


class Point(nn.Module):
    """y = x w with point weights, in float64."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, dtype=torch.float64))

    def forward(self, x):
        return x @ self.weight


def nll(outputs, y):
    return (outputs - y).square().mean() / (2 * NOISE_VAR)


def job(network, x, y, loss=nll, seed=0, **changes):
    training = Training(**{"epochs": 1, "batch_size": len(x), "lr": 0.01, **changes})
    return Local(network, x, y, loss, local_method("variational"), training, 1.0, 1, seed)


def posterior(data, prior_std=1.0):
    x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    precision = x.t() @ x / NOISE_VAR + torch.eye(x.shape[1], dtype=torch.float64) / prior_std**2
    return torch.linalg.solve(precision, x.t() @ y / NOISE_VAR), precision.inverse().diag()


def one_client(method, data, rounds=1, **training):
    network, kept = Point(data[0].shape[1]), {}
    model = network.state_dict()
    model = {name: tensor.clone() for name, tensor in model.items()}
    state = method.start(model)
    for _ in range(rounds):
        local = job(Point(data[0].shape[1]), *data, **training)
        fitted = method.fit(local, method.send(Server(model, state), "a"), kept)
        kept = fitted.kept
        model, state = method.aggregate(Server(model, state), [Reply("a", 1.0, fitted.reply)])
    return model, method.predictive(model, state).members["weight"]


@pytest.mark.parametrize("name", ["DSVGD", "FedWBA"])
def test_one_client_is_plain_svgd(name):
    """Steps of SVGD under N(0, 1), written out; the order of the particles is no matter."""
    (x, y), method = clients(0, 1)[0], method_named(name)(particles=6)
    _, found = one_client(method, (x, y), epochs=30)
    sent = method.send(Server({"weight": torch.zeros(4, dtype=torch.float64)}, {}), "a")
    start = method.fit(job(Point(4), x, y, epochs=1, lr=1e-12), sent, {}).reply["weight"]
    particles, squares = start.clone(), None
    for _ in range(30):
        scores = (y - particles @ x.t()) @ x / NOISE_VAR - particles
        apart = torch.cdist(particles, particles).square()
        med = apart[~torch.eye(6, dtype=bool)].median()
        kernel = (-apart * math.log(7) / med).exp()
        push = (particles[:, None] - particles) * kernel[..., None] * 2 * math.log(7) / med
        phi = (kernel @ scores + push.sum(1)) / 6
        squares = phi**2 if squares is None else 0.9 * squares + 0.1 * phi**2
        particles = particles + 0.01 * phi / (1e-6 + squares.sqrt())
    torch.testing.assert_close(found[found[:, 0].argsort()], particles[particles[:, 0].argsort()])


@pytest.mark.parametrize("name", ["DSVGD", "FedWBA"])
def test_one_client_has_the_posterior_of_a_linear_model(name):
    """Mean within a tenth of a standard deviation, variances from 0.7 to 1.1 of the posterior's."""
    data, method = clients(3, 1, features=2, correlation=0.3)[0], method_named(name)(particles=40)
    _, found = one_client(method, data, epochs=400, lr=0.01)
    mean, var = posterior([data])
    assert ((found.mean(0) - mean) / var.sqrt()).abs().max() < 0.1
    ratio = found.var(0, correction=0) / var
    assert 0.7 < ratio.min() and ratio.max() < 1.1


def test_the_barycentre_of_gaussians_that_commute_is_theirs_and_no_order_matters():
    shape = double(9, 3)
    scales, shifts = [0.5, 1.0, 3.0], [double(3, seed=k) for k in range(3)]
    clouds = [shift + scale * shape for scale, shift in zip(scales, shifts, strict=True)]
    expected = torch.stack(shifts).mean(0) + 1.5 * shape
    generator = torch.Generator().manual_seed(0)
    for turn in ([0, 1, 2], [2, 0, 1]):
        mixed = [clouds[k][torch.randperm(9, generator=generator)] for k in turn]
        points, orders = barycentre(mixed)
        for order in orders:
            assert sorted(order.tolist()) == list(range(9))
        each = [cloud[order] for cloud, order in zip(mixed, orders, strict=True)]
        torch.testing.assert_close(torch.stack(each).mean(0), points)
        torch.testing.assert_close(points[points[:, 0].argsort()],
                                   expected[expected[:, 0].argsort()])  # fmt: skip


class Mixed(nn.Module):
    """Trained and frozen weights, batch norm's statistics, a number that is given."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.norm, self.output = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.hidden.bias.requires_grad_(False)
        self.register_buffer("temperature", torch.tensor(1.5))

    def forward(self, x):
        return self.output(self.norm(self.hidden(x)).relu()) / self.temperature


def classes(seed, count=24):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return x, (x[:, 0] > x[:, 1]).long()


def federation(method, data, turns, **training):
    """Return the global particles after rounds of these clients."""
    features = data[0][0].shape[1]
    model = {name: t.clone() for name, t in Point(features).state_dict().items()}
    state = {}
    for turn in turns:
        replies = []
        for k in turn:
            local = job(Point(features), *data[k], seed=k, **training)
            fitted = method.fit(local, method.send(Server(model, state), f"site/{k}"), {})
            replies.append(Reply(f"site/{k}", float(len(data[k][0])), fitted.reply))
        model, state = method.aggregate(Server(model, state), replies)
    return method.predictive(model, state).members["weight"]


@pytest.mark.parametrize(
    ("features", "turns"),
    [(1, [[0], [1], [2], [0], [1], [2]]), (1, [[0, 1, 2]] * 4), (2, [[0, 1, 2]] * 3)],
)
def test_clients_in_turn_or_together_find_the_posterior_of_all_data(features, turns):
    """Mean within a quarter of its standard deviation, variances from half to 1.3 of its own."""
    data = clients(1, 3, features=features, correlation=0.3)
    method = DSVGD(particles=20 * features, width=0.0, server_steps=80)
    found = federation(method, data, turns, epochs=80, lr=0.0125)
    mean, var = posterior(data)
    assert ((found.mean(0) - mean) / var.sqrt()).abs().max() < 0.25
    ratio = found.var(0, correction=0) / var
    assert 0.5 < ratio.min() and ratio.max() < 1.3
    alone, _ = posterior(data[:1])
    assert ((alone - mean) / var.sqrt()).abs().max() > 0.5


def test_over_many_rounds_particles_do_not_run_away():
    """Trap: along a quotient that is no density they ran five standard deviations a round."""
    data = [
        (x[:n], y[:n]) for (x, y), n in zip(clients(1, 3, features=1), (8, 20, 60), strict=True)
    ]
    method = DSVGD(particles=20, width=0.0, server_steps=80)
    found = federation(method, data, [[k % 3] for k in range(24)], epochs=80, lr=0.0125)
    mean, var = posterior(data)
    assert ((found.mean(0) - mean) / var.sqrt()).abs().max() < 1.0
    ratio = found.var(0, correction=0) / var
    assert 0.4 < ratio.min() and ratio.max() < 2.0


def test_a_site_narrower_than_what_holds_it_is_the_reply_anew_and_the_product_takes_its_place():
    """The variances then grow here from 0.01 to 1, of which the server warns."""
    generator = torch.Generator().manual_seed(0)
    rows = {
        name: std * torch.randn(200, 1, generator=generator, dtype=torch.float64)
        for name, std in {"q": 0.1, "t": 0.05, "reply": 1.0}.items()
    }
    method, lines = DSVGD(particles=200, width=0.0, prior_std=10.0), []
    state = {"particles/w": rows["q"], "site/a/w": rows["t"]}
    server = Server({"w": torch.zeros(1, dtype=torch.float64)}, state, warn=lines.append)
    _, after = method.aggregate(server, [Reply("a", 1.0, {"w": rows["reply"]})])
    assert torch.equal(after["site/a/w"], rows["reply"])
    assert after["particles/w"].var() > 0.02 and not torch.equal(after["particles/w"], rows["q"])
    assert len(lines) == 1 and "variances have grown" in lines[0]


def test_the_cavity_reaches_the_client():
    """Trap: with a dead density a client's particles are those of its own data."""
    data = clients(1, 2, features=1, correlation=0.3)
    method = DSVGD(width=0.0)
    told = federation(method, data, [[0], [1]], epochs=100, lr=0.01).mean(0)
    alone = federation(method, data, [[1]], epochs=100, lr=0.01).mean(0)
    all_data, _ = posterior(data)
    assert (told - all_data).abs() < 0.5 * (alone - all_data).abs()


def test_a_site_is_by_its_name_and_damping_is_refused_before_it_diverges():
    method, model = DSVGD(particles=3, server_steps=2), {"w": torch.zeros(2)}
    draw = torch.Generator().manual_seed(0)
    particles = [0.1 * torch.randn(3, 2, generator=draw) for _ in range(3)]
    names = zip(("a", "a/w", ""), particles, strict=True)
    replies = [Reply(name, 1.0, {"w": own}) for name, own in names]
    _, state = method.aggregate(Server(model, {}), replies)
    _, after = method.aggregate(Server(model, state), replies[:1])
    for name in ("a", "a/w", ""):
        before, now = (method.send(Server(model, held), name)["site/w"] for held in (state, after))
        assert torch.equal(before, now) == (name != "a")
    assert "site/w" not in method.send(Server(model, state), "b")
    refused("damping", lambda: DSVGD(damping=0.5).aggregate(Server(model, {}), replies))


@pytest.mark.parametrize("name", ["DSVGD", "FedWBA"])
def test_what_is_not_trained_stays_and_each_particle_has_statistics_of_its_own(name):
    method = method_named(name)(particles=5)
    model = {key: tensor.clone() for key, tensor in Mixed().state_dict().items()}
    state, kept = method.start(model), {}
    for _ in range(2):
        replies = []
        for k in range(3):
            local = job(Mixed(), *classes(k), nn.functional.cross_entropy, k, batch_size=8)
            sent = method.send(Server(model, state), str(k))
            fitted = method.fit(local, sent, kept.get(k, {}))
            kept[k] = fitted.kept
            assert {n: t.shape for n, t in fitted.reply.items()} == {
                n: t.shape for n, t in method.reply_like(model).items()
            }
            assert list(fitted.reply) == list(model)
            replies.append(Reply(str(k), 24.0, fitted.reply))
        model, state = method.aggregate(Server(model, state), replies)
    together = method.predictive(model, state).members
    assert together.keys() == model.keys() == Mixed().state_dict().keys()
    for key in ("hidden.bias", "temperature"):
        torch.testing.assert_close(model[key], Mixed().state_dict()[key])
        assert (together[key] == together[key][0]).all()
    for key in ("hidden.weight", "norm.running_mean"):
        assert (together[key].std(0) > 1e-4).all()
    assert together["norm.num_batches_tracked"].tolist() == [6] * 5


@pytest.mark.parametrize("name", ["DSVGD", "FedWBA"])
def test_particles_of_a_big_network_are_refused_with_their_bytes(name, monkeypatch):
    monkeypatch.setattr(_method, "total_memory", lambda: 10_000)
    big, small = method_named(name)(particles=50), method_named(name)(particles=5)
    local = job(Mixed(), *classes(0), nn.functional.cross_entropy)
    sent = small.send(Server(Mixed().state_dict(), {}), "a")
    small.fit(local, sent, {})
    refused(r"particles: '50 networks of 180 bytes, 9,000 bytes", big.fit, local, sent, {})
    assert small.held(10) >= 50


def test_a_client_keeps_its_particles_and_predicts_by_them():
    method = FedWBA(particles=5)
    local, sent = job(Mixed(), *classes(0), nn.functional.cross_entropy), Mixed().state_dict()
    assert method.personal(local, sent, {}) is None
    fitted = method.fit(local, sent, {})
    own = method.personal(local, sent, fitted.kept)
    assert all(torch.equal(own.members[n], t) for n, t in fitted.reply.items())
    torch.testing.assert_close(own.model["output.weight"], fitted.reply["output.weight"].mean(0))
    still = method.fit(job(Mixed(), *classes(0), nn.functional.cross_entropy, lr=1e-12), sent,
                       fitted.kept)  # fmt: skip
    torch.testing.assert_close(still.reply["output.weight"], fitted.reply["output.weight"])
