"""FedBE's members and student."""

import copy

import pytest
import torch
from ensembles import cross_entropy, data, network, server
from torch import Generator, nn

from fedbary.errors import SettingError
from fedbary.methods import Bench, Reply, Server
from fedbary.methods._distil import Distillation, answers, distilled
from fedbary.methods._method import weighted_mean
from fedbary.methods.fedbe import FedBE
from fedbary.predictive.predictor import Auto, Draws
from fedbary.variational.regressor import Regressor, gaussian_nll


def replies(count=4, alike=False):
    return [Reply(str(k), 1.0 + k, network(0 if alike else k).state_dict()) for k in range(count)]


@pytest.mark.parametrize("ensemble", ["gaussian", "dirichlet"])
def test_identical_clients_are_that_model(ensemble):
    method = FedBE(ensemble=ensemble, distil_epochs=0)
    model, state = method.aggregate(server(*data(0)), replies(alike=True))
    members = method.predictive(model, state).members
    for name, tensor in network().state_dict().items():
        assert len(members[name]) == 4 + 1 + 10
        torch.testing.assert_close(members[name], tensor.expand_as(members[name]))
        torch.testing.assert_close(model[name], tensor)


def test_the_ensemble_is_the_clients_their_mean_and_draws_with_their_moments():
    method = FedBE(draws=4000, distil_epochs=0)
    sent = replies()
    model, state = method.aggregate(server(*data(0)), sent)
    members, mean = method.predictive(model, state).members, weighted_mean(sent, list(model))
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
    draws = near.predictive(model, state).members["0.weight"][5:]
    torch.testing.assert_close(draws, model["0.weight"].expand_as(draws), rtol=1e-2, atol=1e-3)
    wide = FedBE(ensemble="dirichlet", concentration=0.1, distil_epochs=0)
    draws = wide.predictive(*wide.aggregate(server(*data(0)), sent)).members["0.weight"][5:]
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
    held = method.predictive(model, state)
    generator = Generator().manual_seed(0)
    target = Auto().predict(network(), x, held, Draws(1, generator)).probs
    with torch.no_grad():
        gaps = []
        for weights in (model, weighted_mean(sent, list(start))):
            student = network()
            student.load_state_dict(weights)
            gaps.append((student.eval()(x).softmax(1) - target).abs().mean())
    assert gaps[0] < 0.5 * gaps[1]


class Answer(nn.Module):
    """It answers the same logits to every input."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x):
        return self.logits.expand(len(x), -1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_student_is_the_mean_of_the_probabilities_to_the_power_of_one_over_t(temperature):
    """Traps: the mean of the logits; the power T."""
    nets = [Answer(3.0, 0.0, -1.0), Answer(-1.0, 1.0, 0.0), Answer(0.0, 0.5, 0.5)]
    bench = Bench(Answer(0.0, 0.0, 0.0), torch.zeros(50, 1), torch.zeros(50), cross_entropy)
    sent = [Reply(str(k), 1.0 + k, net.state_dict()) for k, net in enumerate(nets)]
    method = FedBE(
        draws=0, distil_epochs=150, distil_lr=0.5, distil_batch_size=25,
        distil_temperature=temperature,
    )  # fmt: skip
    start = bench.network.state_dict()
    model, state = method.aggregate(Server(start, {}, bench=bench), sent)
    members = method.predictive(model, state).members["logits"]
    assert len(members) == 4
    target = members.softmax(-1).mean(0) ** (1 / temperature)
    torch.testing.assert_close(
        model["logits"].softmax(0), target / target.sum(), rtol=1e-3, atol=1e-3
    )


def test_the_last_iterates_are_averaged():
    """From a step on, every so many: the mean of what shorter trainings end with."""
    bench = Bench(Answer(0.0, 0.0), torch.zeros(30, 1), torch.zeros(30), cross_entropy)
    teachers = [Answer(2.0, 0.0).state_dict()]

    def student(epochs, averaged_from):
        how = Distillation(epochs, 30, 0.3, averaged_from=averaged_from, averaged_every=3)
        return distilled(bench, bench.network.state_dict(), teachers, how, 0)["logits"]

    iterates = torch.stack([student(step, 100) for step in (4, 7, 10)])
    torch.testing.assert_close(student(12, 4), iterates.mean(0))


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


def test_without_distillation_the_server_needs_no_examples():
    from fedbary.strategies import FedBE as Strategy

    Strategy(distil_epochs=0)
    with pytest.raises(SettingError, match="bench"):
        Strategy()
