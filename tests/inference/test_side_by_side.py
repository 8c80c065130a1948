"""Clients that train side by side end where the local method alone takes each of them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, nn

from fedbary.gaussian import Factor, Posterior
from fedbary.inference import Training, _schedule, local_method, prepare
from fedbary.inference._side_by_side import fit, hindrance
from fedbary.inference._stacked import Call
from fedbary.models import build
from fedbary.variational import keep_frozen
from fedbary.variational.adapters import truncated

NAMES = ["variational", "clamped_sgd"]


def network(name="variational", model="cnn", channels=1, layers=3, dropout=0.0):
    parameters = {"dropout": dropout}
    made = build(model, (channels, 8, 8), 4, 0, layers, init_log_var=-5.0, parameters=parameters)
    prepare(name, made)
    return made.double()


def calls(model, sizes, prior=1.0, kl_weights=None, augment=False, seed=0, **training):
    """One for each size, in float64, with starts of their own."""
    generator = Generator().manual_seed(seed)
    made = []
    for number, size in enumerate(sizes):
        start = {
            name: tensor + 0.01 * torch.randn(tensor.shape, generator=generator).to(tensor)
            for name, tensor in model.state_dict().items()
        }
        channels = next(p for p in model.parameters() if p.dim() == 4).shape[1]
        x = torch.rand(size, channels, 8, 8, generator=generator, dtype=torch.float64)
        y = torch.randint(4, (size,), generator=generator)
        words = {"epochs": 2, "batch_size": 4, "lr": 0.05, **training}
        how = Training(**words, kl_weight=kl_weights[number] if kl_weights else 0.5)
        made.append(
            Call(model, x, y, training=how, prior=prior, seed=number, augment=augment, start=start)
        )
    return made


def alone(name, call):
    """What the local method makes of a call: state and metrics."""
    call.load(call.start)
    metrics = local_method(name)(call)
    return call.state(), metrics


def assert_as_alone(name, made, found, atol=1e-9):
    for call, (state, metrics) in zip(made, found, strict=True):
        expected, said = alone(name, call)
        torch.testing.assert_close(state, expected, rtol=0, atol=atol)
        assert metrics.pop("train_seconds") > 0
        assert metrics == pytest.approx(said, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(
    sizes=st.lists(st.integers(1, 13), min_size=1, max_size=4),
    layers=st.sampled_from([0, 3, 5]),
    momentum=st.sampled_from([0.0, 0.9]),
    max_grad_norm=st.sampled_from([None, 0.5]),
    log_var_lr=st.sampled_from([0.0, 0.02]),
    augment=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=5, deadline=None)
def test_each_client_ends_where_it_would_alone(
    name, sizes, layers, momentum, max_grad_norm, log_var_lr, augment, seed
):
    made = calls(
        network(name, layers=layers), sizes, augment=augment, seed=seed,
        momentum=momentum, max_grad_norm=max_grad_norm, weight_decay=0.01, log_var_lr=log_var_lr,
    )  # fmt: skip
    assert hindrance(name, made) == ""
    assert_as_alone(name, made, fit(name, made))


@pytest.mark.parametrize("kind", ["narrow", "posterior", "factor"])
def test_priors_and_weights_of_the_kl_are_the_clients_own(kind):
    model = network()
    held = Posterior.from_state_dict({n: t.clone() for n, t in model.state_dict().items()})
    prior = {"narrow": 0.01, "posterior": held, "factor": Factor.of(held)}[kind]
    made = calls(model, [9, 6, 2], prior, kl_weights=[0.0, 1.0, 5.0])
    assert_as_alone("variational", made, fit("variational", made))


@pytest.mark.slow
def test_a_residual_network_of_many_channels_trains_so_too(monkeypatch):
    """With tables of few steps, too: where one ends makes no difference."""
    monkeypatch.setattr(_schedule, "MOST_STEPS", 3)
    made = calls(network(model="resnet20", channels=3, layers=2), [9, 4], augment=True, epochs=3)
    assert_as_alone("variational", made, fit("variational", made))


class Odd(nn.Module):
    """Takes another way for bright images, which no vmap can."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 8)

    def forward(self, x):
        return self.conv(x).flatten(1) * (2 if x.mean() > 0.5 else 1)


def test_what_cannot_train_so_is_said_beforehand_or_raised():
    made = calls(network(), [4, 4])
    assert "ivon" in hindrance("ivon", made)
    assert "dropout" in hindrance("variational", calls(network(dropout=0.5), [4]))
    with_buffers = nn.Sequential(network(), nn.BatchNorm1d(4)).double()
    tied = nn.Sequential(network(), nn.Linear(4, 4), nn.Linear(4, 4)).double()
    tied[2].weight = tied[1].weight
    assert "tied" in hindrance("variational", calls(tied, [4]))
    assert "buffers" in hindrance("variational", calls(with_buffers, [4]))
    assert "ways" in hindrance("variational", [*made, *calls(network(), [4], epochs=5)])
    with truncated(made[1].model, 1):
        assert "ranks" in hindrance("variational", made)
    with pytest.raises(RuntimeError):
        fit("variational", calls(Odd().double(), [4, 4]))


def moved(call, device):
    """The same call on a device."""
    made = calls(call.model.to(device), [1])[0]
    start = {name: tensor.to(device) for name, tensor in call.start.items()}
    return replace(call, model=made.model, x=call.x.to(device), y=call.y.to(device), start=start)


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("capture", [True, False])
def test_on_a_gpu_steps_captured_or_not_agree_with_the_plain_loop(name, capture):
    plain = calls(network(name), [40, 23, 3], augment=True, epochs=3)
    made = [moved(call, "cuda") for call in plain]
    assert_as_alone(name, made, fit(name, made, capture), atol=1e-8)


def test_a_frozen_body_stays_where_clients_train_side_by_side():
    model = network()
    model.conv1.requires_grad_(False)
    before = model.conv1.weight.clone()
    made = calls(keep_frozen(model), [5, 8])
    assert hindrance("variational", made) == ""
    found = fit("variational", made)
    assert all("conv1.weight" not in state for state, _ in found)
    assert_as_alone("variational", made, found)
    assert torch.equal(model.conv1.weight, before)
