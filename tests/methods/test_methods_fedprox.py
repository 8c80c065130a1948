"""FedProx ends where its quadratic says, and its step is that of the squared norm."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from known_posteriors import OF_ANY_NETWORK
from torch import nn

from fedbary.inference import Training, local_method
from fedbary.methods import Local
from fedbary.methods.fedprox import FedProx
from fedbary.variational import variational


def local(model, x, y, training, nll=nn.functional.mse_loss, inference="variational"):
    return Local(model, x, y, nll, local_method(inference), training, 1.0, round=1, seed=0)


@settings(max_examples=5)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 1.0, 1e5]))
def test_on_a_quadratic_it_ends_between_the_client_s_optimum_and_the_global_model(seed, mu):
    """At (H + μ)⁻¹ (H θ_k + μ θ_g), H the mean curvature and θ_k the client's own optimum."""
    torch.manual_seed(seed)
    x, y = torch.randn(60, 3).double(), torch.randn(60, 1).double()
    model = nn.Linear(3, 1, bias=False).double()
    start = model.weight.detach().clone()[0]
    curvature, pull = 2 * x.t() @ x / 60, 2 * x.t() @ y[:, 0] / 60
    training = Training(epochs=300, batch_size=60, lr=0.1, momentum=0.5)
    job = local(model, x, y, training)
    reply = FedProx(mu).fit(job, job.state(), {}).reply
    exact = torch.linalg.solve(curvature + mu * torch.eye(3).double(), pull + mu * start)
    torch.testing.assert_close(reply["weight"][0], exact, rtol=1e-6, atol=1e-6)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()


def test_its_steps_are_those_of_autograd_on_the_loss_with_the_squared_norm():
    torch.manual_seed(0)
    x, y = torch.randn(40, 4).double(), torch.randint(0, 3, (40,))
    training = Training(epochs=3, batch_size=16, lr=0.05, momentum=0.9, weight_decay=0.01)
    mu = 0.7
    job = local(network(), x, y, training, nn.functional.cross_entropy)
    reply = FedProx(mu).fit(job, job.state(), {}).reply
    plain = network()
    start = [p.detach().clone() for p in plain.parameters()]
    sgd = torch.optim.SGD(plain.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
    order = torch.Generator().manual_seed(0)
    for _ in range(3):
        for rows in torch.randperm(40, generator=order).split(16):
            sgd.zero_grad()
            pairs = zip(plain.parameters(), start, strict=True)
            penalty = sum((p - begun).square().sum() for p, begun in pairs)
            (nn.functional.cross_entropy(plain(x[rows]), y[rows]) + mu / 2 * penalty).backward()
            sgd.step()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(reply[name], tensor)


@pytest.mark.parametrize("name", OF_ANY_NETWORK)
def test_under_every_local_inference_means_and_points_are_held_and_variances_train(name):
    torch.manual_seed(0)
    x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
    moved = []
    for proximity in (0.0, 5.0, 20.0):
        torch.manual_seed(1)
        plain = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        model = variational(plain, last=1)
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        training = Training(20, 16, lr=0.02, momentum=0.0, log_var_lr=0.01, proximity=proximity)
        local_method(name)(Local(model, x, y, training=training))
        steps = {n: (p.detach() - before[n]).norm() for n, p in model.named_parameters()}
        assert steps.pop("2.weight_log_var") > 0
        moved.append(torch.stack(list(steps.values())).norm())
    assert 4 * moved[2] < 2 * moved[1] < moved[0]
