"""FedBE's members and student, and β-PredBayes between the mixture and the product."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, nn

from fedbary.errors import SettingError
from fedbary.methods import Bench, Reply, Server, method_named
from fedbary.methods._distil import Distillation, answers, distilled
from fedbary.methods._method import weighted_mean
from fedbary.methods.fedbe import FedBE
from fedbary.methods.predbayes import PredBayes
from fedbary.predictive.choice import predicted
from fedbary.predictive.combine import Pool, log_pool
from fedbary.regression.forecast import forecast, gaussian_pool, pooled_forecast
from fedbary.regression.networks import Regressor, gaussian_nll

cross_entropy = nn.functional.cross_entropy


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def data(seed, count=200):
    generator = Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return x, (x[:, 0] + 0.5 * torch.randn(count, generator=generator) > 0).long()


def server(x, y, model=None, seed=3):
    return Server(
        model or network().state_dict(), {}, 1, seed, Bench(network(), x, y, cross_entropy)
    )


def replies(count=4, alike=False):
    return [Reply(str(k), 1.0 + k, network(0 if alike else k).state_dict()) for k in range(count)]


@pytest.mark.parametrize("ensemble", ["gaussian", "dirichlet"])
def test_identical_clients_are_that_model(ensemble):
    method = FedBE(ensemble=ensemble, distil_epochs=0)
    model, state = method.aggregate(server(*data(0)), replies(alike=True))
    members = method.members(model, state)
    for name, tensor in network().state_dict().items():
        assert len(members[name]) == 4 + 1 + 10
        torch.testing.assert_close(members[name], tensor.expand_as(members[name]))
        torch.testing.assert_close(model[name], tensor)


def test_the_ensemble_is_the_clients_their_mean_and_draws_with_their_moments():
    method = FedBE(draws=4000, distil_epochs=0)
    sent = replies()
    model, state = method.aggregate(server(*data(0)), sent)
    members, mean = method.members(model, state), weighted_mean(sent, list(model))
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    for name in ("0.weight", "3.bias"):
        stack = torch.stack([reply.tensors[name] for reply in sent])
        assert torch.equal(members[name][:4], stack) and torch.equal(members[name][4], mean[name])
        draws = members[name][5:]
        variance = torch.tensordot(weights, (stack - mean[name]).square(), 1)
        gap = (draws.mean(0) - mean[name]) / (variance / 4000).sqrt()
        assert gap.abs().max() < 5
        torch.testing.assert_close(draws.var(0), variance, rtol=0.15, atol=0)


def test_a_dirichlet_of_great_concentration_is_fedavg_and_of_any_a_weighted_mean():
    sent = replies()
    near, _ = FedBE(ensemble="dirichlet", concentration=1e8, distil_epochs=0), None
    model, state = near.aggregate(server(*data(0)), sent)
    draws = near.members(model, state)["0.weight"][5:]
    torch.testing.assert_close(draws, model["0.weight"].expand_as(draws), rtol=1e-2, atol=1e-3)
    wide = FedBE(ensemble="dirichlet", concentration=0.1, distil_epochs=0)
    draws = wide.members(*wide.aggregate(server(*data(0)), sent))["0.weight"][5:]
    stack = torch.stack([reply.tensors["0.weight"] for reply in sent])
    assert (draws <= stack.amax(0) + 1e-6).all() and (draws >= stack.amin(0) - 1e-6).all()
    assert draws.var(0).mean() > 0.1 * stack.var(0).mean()


def test_the_student_learns_the_ensemble_without_labels():
    x, y = data(0, 400)
    sent = replies()
    method = FedBE(distil_epochs=30, distil_lr=0.05, distil_temperature=1.0)
    start = {name: t for name, t in network().state_dict().items()}
    model, state = method.aggregate(server(x, y, start), sent)
    again, _ = method.aggregate(server(x, 1 - y, start), sent)
    assert all(torch.equal(model[name], again[name]) for name in model)
    members = method.members(model, state)
    generator = Generator().manual_seed(0)
    target = predicted("auto", network(), x, 1, generator, None, members).probs
    with torch.no_grad():
        gaps = []
        for weights in (model, weighted_mean(sent, list(start))):
            student = network()
            student.load_state_dict(weights)
            gaps.append((student.eval()(x).softmax(1) - target).abs().mean())
    assert gaps[0] < 0.5 * gaps[1]


def test_targets_are_sharpened_by_the_temperature():
    """Of one teacher with p the student's optimum is p^(1/T) / Σ p^(1/T)."""

    class Answer(nn.Module):
        def __init__(self, logits):
            super().__init__()
            self.logits = nn.Parameter(torch.tensor(logits))

        def forward(self, x):
            return self.logits.expand(len(x), -1)

    bench = Bench(Answer([0.0, 0.0]), torch.zeros(50, 1), torch.zeros(50), cross_entropy)
    teachers = [Answer([1.0, 0.0]).state_dict(), Answer([0.5, -0.5]).state_dict()]
    how = Distillation(200, 25, 0.5, 0.0, sharpness=2.0, averaged_from=300)
    found = distilled(bench, Answer([0.0, 0.0]).state_dict(), teachers, how, 0)["logits"]
    odds = found.softmax(0)
    target = (2 * torch.tensor([1.0, 0.0])).softmax(0)
    torch.testing.assert_close(odds, target, rtol=1e-3, atol=1e-3)


def test_a_regression_s_student_has_the_mixture_s_moments():
    torch.manual_seed(0)
    x = torch.randn(100, 2)
    net = Regressor(2, 0, noise="learned")
    teachers = []
    for shift in (-1.0, 1.0):
        teacher = copy.deepcopy(net)
        teacher.output.bias.data.fill_(shift)
        teacher.log_noise_var.data.fill_(-1.0)
        teachers.append(teacher.state_dict())
    bench = Bench(net, x, torch.zeros(100), gaussian_nll)
    how = Distillation(400, 50, 0.05, averaged_from=10**6)
    found = distilled(bench, net.state_dict(), teachers, how, 0)
    variance = 1.0 + torch.tensor(-1.0).exp()
    torch.testing.assert_close(found["log_noise_var"].exp(), variance, rtol=0.02, atol=0)
    assert found["output.bias"].abs() < 0.02
    assert answers(bench, teachers).shape == (2, 100, 2)


def logits(seed, clients, count=20, classes=4):
    return 2 * torch.randn(clients, count, classes, generator=Generator().manual_seed(seed))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.0, 1.0))
def test_beta_runs_from_the_mixture_to_the_product(seed, clients, beta):
    logs = logits(seed, clients).log_softmax(-1)
    product, mixture = logs.exp().prod(0), logs.exp().mean(0)
    expected = product**beta * mixture ** (1 - beta)
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(log_pool(logs, beta).exp(), expected, rtol=1e-4, atol=1e-6)
    alike = logs[:1].expand(clients, -1, -1)
    tempered = ((1 + beta * (clients - 1)) * logs[0]).softmax(-1)
    torch.testing.assert_close(log_pool(alike, beta).exp(), tempered, rtol=1e-4, atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.0, 1.0))
def test_beta_of_numbers_is_between_their_product_and_their_moments(seed, clients, beta):
    generator = Generator().manual_seed(seed)
    mean = torch.randn(clients, 9, generator=generator, dtype=torch.float64)
    var = torch.rand(clients, 9, generator=generator, dtype=torch.float64) + 0.1
    at = {b: gaussian_pool(mean, var, torch.tensor(b)) for b in (0.0, 1.0, beta)}
    second = (var + mean.square()).mean(0)
    torch.testing.assert_close(at[0.0][0], mean.mean(0))
    torch.testing.assert_close(at[0.0][1], second - mean.mean(0).square())
    torch.testing.assert_close(at[1.0][1], 1 / (1 / var).sum(0))
    torch.testing.assert_close(at[1.0][0], (mean / var).sum(0) / (1 / var).sum(0))
    precision = beta / at[1.0][1] + (1 - beta) / at[0.0][1]
    torch.testing.assert_close(at[beta][1], 1 / precision)
    same = gaussian_pool(
        mean[:1].expand(clients, -1), var[:1].expand(clients, -1), torch.tensor(beta)
    )
    torch.testing.assert_close(same[0], mean[0])
    torch.testing.assert_close(same[1], var[0] / (1 + beta * (clients - 1)))


def samples_of(count, each, seed=0):
    """Replies of clients with networks of their own, stacked."""
    found = []
    for k in range(count):
        nets = [network(seed + 10 * k + m).state_dict() for m in range(each)]
        weights = {
            n: torch.stack([net[n] for net in nets]) for n in nets[0] if not n.startswith("1.run")
        }
        weights = {n: t for n, t in weights.items() if t.is_floating_point()}
        found.append(Reply(str(k), 1.0, {**nets[0], **weights}))
    return found


def test_the_learned_beta_is_the_best_on_the_server_s_examples_and_predicts():
    x, y = data(1, 300)
    method = PredBayes(networks=2, server_epochs=400)
    here = server(x, y)
    model, state = method.aggregate(here, samples_of(3, 2))
    members, pool = method.members(model, state), method.pool(model, state)
    assert pool.each == 2 and members["0.weight"].shape[0] == 6

    def nll(beta):
        generator = Generator().manual_seed(0)
        probs = predicted(
            "auto", network(), x, 1, generator, None, members, pool=Pool(2, beta)
        ).probs
        return float(-probs[torch.arange(300), y].log().mean())

    best = min(torch.linspace(0, 1, 101).tolist(), key=nll)
    assert pool.beta == pytest.approx(best, abs=0.02)
    assert nll(pool.beta) <= min(nll(0.0), nll(1.0)) + 1e-6
    assert method.pool(model, {}) is None


def test_predictions_pool_clients_not_networks():
    x, members = data(2, 50)[0], {}
    for reply in samples_of(3, 2):
        for name, tensor in reply.tensors.items():
            part = tensor if len(tensor.shape) and len(tensor) == 2 and name[0] in "03" else None
            if part is not None:
                members.setdefault(name, []).append(part)
    members = {name: torch.cat(parts) for name, parts in members.items()}
    net, generator = network().eval(), Generator().manual_seed(0)
    found = predicted("auto", net, x, 1, generator, None, members, pool=Pool(2, 0.3))
    with torch.no_grad():
        each = torch.stack(
            [
                torch.func.functional_call(net, {n: t[k] for n, t in members.items()}, (x,))
                for k in range(6)
            ]
        ).softmax(-1)
    clients = each.view(3, 2, 50, 2).mean(1)
    expected = clients.prod(0) ** 0.3 * clients.mean(0) ** 0.7
    torch.testing.assert_close(found.probs, expected / expected.sum(-1, keepdim=True))
    product = predicted("product", net, x, 1, generator, None, members, pool=Pool(2, 0.3))
    geometric = clients.log().mean(0).softmax(-1)
    torch.testing.assert_close(product.probs, geometric)
    mixture = predicted("members", net, x, 1, generator, None, members, pool=Pool(2, 0.3))
    torch.testing.assert_close(mixture.probs, each.mean(0))


def test_pooled_forecasts_at_beta_0_are_the_mixture_s():
    torch.manual_seed(0)
    nets = [Regressor(2, 3, noise="learned") for _ in range(4)]
    for k, net in enumerate(nets):
        net.reset(-5.0, k)
    networks = {n: torch.stack([net.state_dict()[n] for net in nets]) for n in nets[0].state_dict()}
    x = torch.randn(20, 2)
    plain, pooled = forecast(networks, x), pooled_forecast(networks, x, 0.0, Pool(2, 0.0))
    torch.testing.assert_close(plain.mean, pooled.mean)
    torch.testing.assert_close(plain.var, pooled.var)
    sure = pooled_forecast(networks, x, 0.0, Pool(2, 1.0))
    assert (sure.var < pooled.var).all() and (sure.epistemic >= 0).all()


def test_without_distillation_the_server_needs_no_examples():
    from fedbary.strategies import FedBE as Strategy

    Strategy(distil_epochs=0)
    with pytest.raises(SettingError, match="bench"):
        Strategy()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("FedBE", {"ensemble": "laplace"}), ("FedBE", {"draws": -1}),
        ("FedBE", {"concentration": 0.0}), ("FedBE", {"distil_epochs": -1}),
        ("FedBE", {"distil_lr": 0.0}), ("FedBE", {"distil_temperature": 0.0}),
        ("FedBE", {"distil_batch_size": 0}), ("PredBayes", {"server_lr": 0.0}),
        ("PredBayes", {"server_epochs": -1}), ("PredBayes", {"networks": 0}),
    ],
)  # fmt: skip
def test_parameters_out_of_range_are_refused(name, wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        method_named(name)(**wrong)
