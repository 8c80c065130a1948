"""SGLD and SGHMC sample the posterior at temperature 1; FedPPD's student learns what they say."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from fedbary.errors import SettingError
from fedbary.inference import Training, local_method
from fedbary.methods import Local, Reply, Server, _room, method_named
from fedbary.methods._langevin import Sampler, samples
from fedbary.methods._room import require_room
from fedbary.methods.fedppd import FedPPD
from fedbary.methods.sghmc import SGHMC
from fedbary.methods.sgld import SGLD

WEIGHTS, EXAMPLES = 400, 32


class Means(nn.Module):
    """It answers its weights to every example: y_i ~ N(θ, 1/h) has a Gaussian posterior."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WEIGHTS))

    def forward(self, x):
        return self.weight.expand(len(x), -1)


CURVATURE = torch.linspace(0.5, 2.0, WEIGHTS)


def energy(outputs, y):
    return (0.5 * CURVATURE * (outputs - y).square()).sum(1).mean()


def job(network, x, y, nll, lr, epochs, batch_size, decay=0.0, seed=0):
    training = Training(epochs, batch_size, lr=lr, momentum=0.9, weight_decay=decay)
    return Local(network, x, y, nll, local_method("variational"), training, 1.0, 1, seed)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize(("friction", "lr"), [(1.0, 0.05), (0.1, 0.002)])
def test_samples_have_the_posterior_s_mean_and_variance(friction, lr, temperature):
    """Trap: a temperature of 4/n_k would be an eighth of the variance, one of n_k 32 times it."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(EXAMPLES, WEIGHTS, generator=generator)
    decay = 0.3
    local = job(Means(), torch.zeros(EXAMPLES, 1), y, energy, lr, 1500, EXAMPLES, decay)
    sampler = Sampler(local, friction, temperature)
    value, kept = sampler.vectors.points.value, []
    for step, _ in enumerate(sampler):
        if step >= 300 and step % 10 == 0:
            kept.append(value.clone())
    drawn = torch.stack(kept)
    precision = EXAMPLES * (CURVATURE + decay)
    mean = CURVATURE * y.mean(0) / (CURVATURE + decay)
    scaled = (drawn - mean) * (precision / temperature).sqrt()
    assert scaled.mean().abs() < 0.05
    assert scaled.square().mean() == pytest.approx(1.0, rel=0.1)
    low, high = scaled[:, : WEIGHTS // 2].square().mean(), scaled[:, WEIGHTS // 2 :].square().mean()
    assert low == pytest.approx(float(high), rel=0.15)


def variances(rates, friction, temperature, decay):
    """Var θ after steps from θ = its mode, u = 0: of a Gaussian the chain is linear in both."""
    at, cross, speed = torch.zeros(3, WEIGHTS).unbind(0)  # Var θ, Cov(θ, u), Var u
    for rate in rates:
        keep, pull = 1 - friction, rate * (CURVATURE + decay)
        noise = 2 * friction * rate * temperature / EXAMPLES
        speed = keep**2 * speed - 2 * keep * pull * cross + pull**2 * at + noise
        cross = keep * cross - pull * at
        at, cross = at + 2 * cross + speed, cross + speed
    return at


@pytest.mark.parametrize(
    ("method", "friction", "rates"),
    [
        (SGLD(temperature=0.5, rate_factor=2, cycles=0, noisy_epochs=9), 1.0, [0.2] * 9),
        (SGHMC(temperature=2.0, friction=0.4, cycles=0, noisy_epochs=9), 0.4, [0.1] * 9),
        (FedPPD(temperature=0.5, teacher_lr=0.4),
         1.0, [0.2] * 3 + [0.2 * 0.85] * 3 + [0.2 * 0.85**2] * 3),
    ],
    ids=["SGLD", "SGHMC", "FedPPD"],
)  # fmt: skip
def test_a_client_s_draws_have_its_own_temperature_friction_and_rate(method, friction, rates):
    """Of FedPPD's teacher a step is half of the rate, which falls every third epoch."""
    method = replace(method, networks=1) if isinstance(method, SGHMC) else method
    y = torch.randn(EXAMPLES, WEIGHTS, generator=torch.Generator().manual_seed(0))
    decay, squares = 0.3, []
    mode = CURVATURE * y.mean(0) / (CURVATURE + decay)
    received = {"weight": mode, "teacher/weight": mode}
    expected = variances(rates, friction, method.temperature, decay)
    for seed in range(8):
        local = job(Means(), torch.zeros(EXAMPLES, 1), y, energy, 0.1, 9, EXAMPLES, decay, seed)
        reply = method.fit(local, received, {}).reply
        drawn = reply.get("teacher/weight", reply["weight"]).view(-1)
        squares.append((drawn - mode).square() / expected)
    assert torch.stack(squares).mean() == pytest.approx(1.0, rel=0.1)


def test_noise_and_samples_are_in_the_last_epochs_of_each_cycle_and_the_rate_is_a_cosine():
    y = torch.zeros(EXAMPLES, WEIGHTS)
    local = job(Means(), torch.zeros(EXAMPLES, 1), y, energy, 0.1, 6, 8)
    sampler = Sampler(local, 1.0, 1.0, cycles=2, noisy_epochs=1)
    value, moved, before = sampler.vectors.points.value, [], torch.zeros(WEIGHTS)
    noisy = []
    for is_noisy in sampler:
        moved.append(float((value - before).square().mean()))
        before = value.clone()
        noisy.append(is_noisy)
    assert noisy == ([False] * 8 + [True] * 4) * 2
    assert moved[:8] == [0.0] * 8 and min(moved[8:12]) > 0
    rates = [sampler._rate(step) for step in range(24)]
    assert rates[:12] == rates[12:] and rates[0] == pytest.approx(0.1)
    assert rates[:12] == sorted(rates[:12], reverse=True) and rates[11] < 0.01


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 4), st.integers(1, 40))
def test_every_cycle_ends_with_noise_whatever_the_number_of_steps(epochs, cycles, noisy, examples):
    """Trap: cycles of a rounded length leave too few steps for the last, and no sample of it."""
    assume(cycles * (noisy + 1) <= epochs)
    local = job(Means(), torch.zeros(examples, 1), torch.zeros(examples, 1), energy, 0.1, epochs, 8)
    sampler = Sampler(local, 1.0, 1.0, cycles, noisy)
    flags = [sampler.is_noisy(step) for step in range(sampler.steps)]
    runs = [(is_noisy, len(list(run))) for is_noisy, run in itertools.groupby(flags)]
    assert [is_noisy for is_noisy, _ in runs] == [False, True] * cycles
    expected = noisy * sampler.steps // epochs
    assert all(length == expected for is_noisy, length in runs if is_noisy)
    rates = [sampler._rate(step) for step in range(sampler.steps)]
    assert sum(later > earlier for earlier, later in itertools.pairwise(rates)) == cycles - 1


@pytest.mark.parametrize(("cycles", "noisy"), [(1, 1), (5, 1), (0, 2)])
def test_a_short_round_has_an_epoch_before_its_noise_unless_the_rate_is_constant(cycles, noisy):
    """Trap: with noise from its first step a round of two epochs ends no further than it began."""
    y = torch.zeros(EXAMPLES, WEIGHTS)
    received = {"weight": torch.zeros(WEIGHTS)}
    jobs = [job(Means(), torch.zeros(EXAMPLES, 1), y, energy, 0.1, 2, 8) for _ in range(2)]
    method = SGHMC(networks=4, cycles=cycles, noisy_epochs=2)
    found = method.fit(jobs[0], received, {}).reply["weight"]
    expected = samples(Sampler(jobs[1], method.friction, 1.0, min(cycles, 1), noisy), 4)
    assert torch.equal(found, expected)


def test_samples_are_spread_over_the_noisy_steps_and_end_with_the_last():
    y = torch.zeros(EXAMPLES, WEIGHTS)
    for count in (1, 3, 4, 9):
        local = job(Means(), torch.zeros(EXAMPLES, 1), y, energy, 0.1, 2, 8)
        sampler = Sampler(local, 1.0, 1.0, cycles=0, noisy_epochs=1)
        taken = samples(sampler, count)
        assert taken.shape == (count, WEIGHTS)
        assert torch.equal(taken[-1], sampler.vectors.points.value)
        assert len({float(row[0]) for row in taken}) == min(count, 4)


def classes(seed=0, count=60):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return x, (x[:, 0] > x[:, 1]).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


class Filters(nn.Sequential):
    """A convolution, its weights channels-last in memory, and a linear layer."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(16, 2))
        self.to(memory_format=torch.channels_last)


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 5), st.integers(0, 2), st.integers(0, 10**6))
def test_a_client_sends_each_sample_as_it_was_drawn(networks, cycles, seed):
    """Trap: as_strided counts from where the storage begins, so that every row was the first."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(24, 3, 3, 3, generator=generator)
    y = torch.randint(0, 2, (24,), generator=generator)
    torch.manual_seed(seed)
    start = Filters().state_dict()
    method = SGHMC(networks=networks, cycles=cycles, noisy_epochs=1)
    jobs = [job(Filters(), x, y, nn.functional.cross_entropy, 0.1, 4, 8) for _ in range(2)]
    reply = method.fit(jobs[0], start, {}).reply
    jobs[1].load(start)
    sampler = Sampler(jobs[1], method.friction, 1.0, cycles, 1)
    for place, vector in enumerate(samples(sampler, networks)):
        sampler.vectors.points.value.copy_(vector)
        for name, parameter in jobs[1].model.named_parameters():
            assert torch.equal(reply[name][place], parameter)


def test_the_server_keeps_every_sample_and_goes_on_from_their_mean():
    method = SGHMC(networks=3, noisy_epochs=1)
    model, replies = network().state_dict(), []
    for k in range(2):
        local = job(network(), *classes(k), nn.functional.cross_entropy, 0.05, 2, 8, seed=k)
        fitted = method.fit(local, model, {})
        for name, like in method.reply_like(model).items():
            assert fitted.reply[name].shape == like.shape
        replies.append(Reply(str(k), 1.0 + 2 * k, fitted.reply))
    found, state = method.aggregate(Server(model, {}), replies)
    members = method.members(found, state)
    assert members.keys() == model.keys() and all(len(t) == 6 for t in members.values())
    one, other = (reply.tensors for reply in replies)
    torch.testing.assert_close(members["0.weight"], torch.cat([one["0.weight"], other["0.weight"]]))
    expected = 0.25 * one["0.weight"].mean(0) + 0.75 * other["0.weight"].mean(0)
    torch.testing.assert_close(found["0.weight"], expected)
    assert torch.equal(members["1.running_mean"][3], other["1.running_mean"])
    assert method.members(model, method.start(model)) == {}


def test_what_does_not_fit_is_refused_with_its_bytes(monkeypatch):
    monkeypatch.setattr(_room, "memory", lambda: 10_000)
    model = {"w": torch.zeros(100)}  # 400 bytes
    require_room("networks", 12, model)
    with pytest.raises(SettingError, match=r"13 networks of 400 bytes, 5,200 bytes.*5,000 bytes"):
        require_room("networks", 13, model)
    local = job(network(), *classes(), nn.functional.cross_entropy, 0.05, 2, 8)
    with pytest.raises(SettingError, match="networks: '100 networks"):
        SGHMC(networks=100).fit(local, network().state_dict(), {})


def test_a_student_learns_the_teacher_s_predictions_and_both_are_averaged():
    method = FedPPD(teacher_lr=0.3)
    x, y = classes(count=200)
    model = network().state_dict()
    state = method.start(model)
    local = job(network(), x, y, nn.functional.cross_entropy, 0.05, 30, 20)
    fitted = method.fit(local, method.send(Server(model, state), "a"), {})
    student, teacher = network(), network()
    student.load_state_dict({name: fitted.reply[name] for name in model})
    teacher.load_state_dict({name: fitted.reply["teacher/" + name] for name in model})
    with torch.no_grad():
        answers = [net.eval()(x).softmax(1) for net in (student, teacher, network())]
    near, far = ((answers[1] - answer).abs().mean() for answer in (answers[0], answers[2]))
    assert near < 0.05 < 0.2 < far
    other = {n: t + 1 if t.is_floating_point() else t for n, t in fitted.reply.items()}
    replies = [Reply("a", 1.0, fitted.reply), Reply("b", 3.0, other)]
    found, kept = method.aggregate(Server(model, state), replies)
    torch.testing.assert_close(found["0.weight"], fitted.reply["0.weight"] + 0.75)
    torch.testing.assert_close(kept["teacher/0.weight"], fitted.reply["teacher/0.weight"] + 0.75)


def test_the_student_is_asked_what_the_teacher_is_asked(monkeypatch):
    """Of inputs with noise that the teacher is not shown a student learns flatter answers."""
    monkeypatch.setattr("fedbary.methods.fedppd.INPUT_NOISE", 3.0)
    x, y = classes(count=200)
    torch.manual_seed(0)
    teacher, student = nn.Linear(3, 2), nn.Linear(3, 2)
    received = {**student.state_dict()}
    received |= {"teacher/" + name: 2 * tensor for name, tensor in teacher.state_dict().items()}
    method = FedPPD(teacher_lr=1e-9, temperature=0.0)
    reply = method.fit(
        job(student, x, y, nn.functional.cross_entropy, 0.05, 20, 20), received, {}
    ).reply
    slopes = [reply[name][0] - reply[name][1] for name in ("weight", "teacher/weight")]
    torch.testing.assert_close(*slopes, rtol=0.1, atol=0.05)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("SGHMC", {"networks": 0}), ("SGLD", {"friction": 0.0}), ("SGHMC", {"temperature": -1.0}),
        ("SGHMC", {"cycles": -1}), ("SGHMC", {"noisy_epochs": 0}), ("SGLD", {"rate_factor": 0.0}),
        ("FedPPD", {"teacher_lr": 0.0}), ("FedPPD", {"temperature": -1.0}),
        ("FedPPD", {"student_passes": 0}),
    ],
)  # fmt: skip
def test_parameters_out_of_range_are_refused(name, wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        method_named(name)(**wrong)
