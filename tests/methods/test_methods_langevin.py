"""Langevin steps, FALD's too, have the temperature that they say; a student learns its teacher."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbary.errors import SettingError
from fedbary.inference import Training, local_method
from fedbary.methods import Local, Reply, Server, _method
from fedbary.methods._chain import Chain, Sampler
from fedbary.methods._method import require_room
from fedbary.methods.fald import FALD
from fedbary.methods.fedppd import FedPPD
from fedbary.methods.sghmc import SGHMC

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


@pytest.mark.in_turn
@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize(("friction", "lr"), [(1.0, 0.05), (0.1, 0.002)])
def test_of_whole_batches_samples_have_the_posterior_s_mean_and_variance(friction, lr, temperature):
    """Trap: a temperature of 4/n_k would be an eighth of the variance, one of n_k 32 times it."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(EXAMPLES, WEIGHTS, generator=generator)
    decay = 0.3
    local = job(Means(), torch.zeros(EXAMPLES, 1), y, energy, lr, 1500, EXAMPLES, decay)
    sampler = Sampler(local, friction, temperature)
    value, kept = sampler.vectors.points.value, []
    for step in sampler:
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


def test_a_teacher_s_rate_falls_every_third_epoch_and_its_noise_with_it():
    """A step is half of the rate. From its mode a Gaussian's chain is linear in what it draws."""
    method, decay, squares = FedPPD(temperature=0.5, teacher_lr=0.4), 0.3, []
    y = torch.randn(EXAMPLES, WEIGHTS, generator=torch.Generator().manual_seed(0))
    mode, var = CURVATURE * y.mean(0) / (CURVATURE + decay), torch.zeros(WEIGHTS)
    for rate in [0.2] * 3 + [0.2 * 0.85] * 3 + [0.2 * 0.85**2] * 3:
        var = (1 - rate * (CURVATURE + decay)) ** 2 * var + 2 * rate * 0.5 / EXAMPLES
    for seed in range(8):
        local = job(Means(), torch.zeros(EXAMPLES, 1), y, energy, 0.1, 9, EXAMPLES, decay, seed)
        reply = method.fit(local, {"weight": mode, "teacher/weight": mode}, {}).reply
        squares.append((reply["teacher/weight"] - mode).square() / var)
    assert torch.stack(squares).mean() == pytest.approx(1.0, rel=0.1)


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


@settings(max_examples=10)
@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 10**6))
def test_a_client_sends_each_sample_as_it_was_drawn(networks, thinning, seed):
    """Trap: as_strided counts from where the storage begins, so that every row was the first."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(24, 3, 3, 3, generator=generator)
    y = torch.randint(0, 2, (24,), generator=generator)
    torch.manual_seed(seed)
    start = Filters().state_dict()
    method = SGHMC(networks=networks, thinning=thinning)
    jobs = [job(Filters(), x, y, nn.functional.cross_entropy, 0.1, 2, 8) for _ in range(2)]
    reply = method.fit(jobs[0], start, {}).reply
    jobs[1].load(start)
    chain = Chain(jobs[1], method.friction, 1.0)
    drawn = chain.samples(networks, thinning)
    assert len(torch.unique(drawn, dim=0)) == networks
    for place, vector in enumerate(drawn):
        chain.points.value.copy_(vector)
        for name, parameter in jobs[1].model.named_parameters():
            assert torch.equal(reply[name][place], parameter)


def test_the_server_keeps_every_sample_and_goes_on_from_their_mean():
    method = SGHMC(networks=3, thinning=2)
    model, replies = network().state_dict(), []
    for k in range(2):
        local = job(network(), *classes(k), nn.functional.cross_entropy, 0.05, 2, 8, seed=k)
        fitted = method.fit(local, model, {})
        for name, like in method.reply_like(model).items():
            assert fitted.reply[name].shape == like.shape
        replies.append(Reply(str(k), 1.0 + 2 * k, fitted.reply))
    found, state = method.aggregate(Server(model, {}), replies)
    members = method.predictive(found, state).members
    assert members.keys() == model.keys() and all(len(t) == 6 for t in members.values())
    one, other = (reply.tensors for reply in replies)
    torch.testing.assert_close(members["0.weight"], torch.cat([one["0.weight"], other["0.weight"]]))
    expected = 0.25 * one["0.weight"].mean(0) + 0.75 * other["0.weight"].mean(0)
    torch.testing.assert_close(found["0.weight"], expected)
    assert torch.equal(members["1.running_mean"][3], other["1.running_mean"])
    assert method.predictive(model, method.start(model)).members == {}


def test_what_does_not_fit_is_refused_with_its_bytes(monkeypatch):
    monkeypatch.setattr(_method, "total_memory", lambda: 10_000)
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


SIZES, DECAY = (8, 16, 40), 0.3


def fitted(method, model, y, seed, lr=0.025, batch_size=64, part=1.0):
    training = Training(99, batch_size, lr=lr, momentum=0.9, weight_decay=DECAY)
    local = Local(Means(), torch.zeros(len(y), 1), y, energy, local_method("variational"),
                  training, 1.0, 1, seed, part=part)  # fmt: skip
    return method.fit(local, model, {})


@pytest.mark.in_turn
@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("local_steps", [1, 5])
def test_the_chain_has_the_posterior_s_mean_and_variance(local_steps, temperature):
    """Trap: noise that is not scaled with the gradients is a temperature of 1/3 here."""
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(n, WEIGHTS, generator=generator) + k for k, n in enumerate(SIZES)]
    method = FALD(networks=100, local_steps=local_steps, burn_in=90 // local_steps,
                  thinning=15 // local_steps, temperature=temperature, rate_factor=2.0)  # fmt: skip
    model, state = {"weight": torch.zeros(WEIGHTS)}, {}
    for server_round in range(1, 90 // local_steps + 40 * (15 // local_steps) + 1):
        seeds = range(10 * server_round, 10 * server_round + 3)
        sent = [fitted(method, model, y, seed) for y, seed in zip(parts, seeds, strict=True)]
        replies = [Reply(str(k), float(SIZES[k]), each.reply) for k, each in enumerate(sent)]
        model, state = method.aggregate(Server(model, state, server_round), replies)
    chain = method.predictive(model, state).members["weight"]
    assert len(chain) == 40
    precision = sum(SIZES) * (CURVATURE + DECAY)
    mean = CURVATURE * torch.cat(parts).mean(0) / (CURVATURE + DECAY)
    scaled = (chain - mean) * (precision / temperature).sqrt()
    assert scaled.mean().abs() < 0.08
    assert scaled.square().mean() == pytest.approx(1.0, rel=0.12)


@pytest.mark.parametrize(("asked", "part"), [(2, 0.5), (1, 0.25)])
def test_a_part_of_the_clients_samples_at_the_same_temperature(asked, part):
    """Trap: noise by the round's examples is n/n_round times too warm, 1.97 for two of four."""
    y = torch.randn(16, WEIGHTS, generator=torch.Generator().manual_seed(0))
    method = FALD(networks=100, local_steps=5, burn_in=18, thinning=3, rate_factor=2.0)
    model, state = {"weight": torch.zeros(WEIGHTS)}, {}
    for server_round in range(1, 18 + 40 * 3 + 1):
        here = [(server_round * asked + k) % 4 for k in range(asked)]
        replies = [
            Reply(str(k), 16.0, fitted(method, model, y, 10 * server_round + k, part=part).reply)
            for k in here
        ]
        model, state = method.aggregate(Server(model, state, server_round), replies)
    mean, precision = CURVATURE * y.mean(0) / (CURVATURE + DECAY), 64 * (CURVATURE + DECAY)
    scaled = (method.predictive(model, state).members["weight"] - mean) * precision.sqrt()
    assert scaled.square().mean() == pytest.approx(1.0, rel=0.12)


def test_every_client_takes_as_many_steps_whatever_its_size():
    model = {"weight": torch.zeros(WEIGHTS)}
    method = FALD(local_steps=7, temperature=0.0, rate_factor=2.0)
    y = torch.ones(1, WEIGHTS)
    few, many = (fitted(method, model, y.repeat(n, 1), 0, batch_size=4) for n in (3, 50))
    torch.testing.assert_close(few.reply["weight"], many.reply["weight"])
    step = 0.05 * (CURVATURE + DECAY)
    torch.testing.assert_close(
        few.reply["weight"], CURVATURE / (CURVATURE + DECAY) * (1 - (1 - step) ** 7)
    )
    at_start = float(0.5 * CURVATURE.sum())
    assert few.metrics["train_nll"] < at_start and many.metrics["train_nll"] < at_start
    one = fitted(FALD(local_steps=1, temperature=0.0), model, y.repeat(50, 1), 0, batch_size=4)
    assert one.metrics["train_nll"] == pytest.approx(at_start)


def test_the_last_networks_whose_turn_it_was_are_kept():
    method, state = FALD(networks=2, burn_in=1, thinning=2), {}
    for server_round in range(1, 9):
        reply = Reply("a", 1.0, {"w": torch.full((3,), float(server_round))})
        model, state = method.aggregate(Server({"w": torch.zeros(3)}, state, server_round), [reply])
        if server_round < 3:
            assert method.predictive(model, state).members == {}
    assert method.predictive(model, state).members["w"][:, 0].tolist() == [5.0, 7.0]
