"""FedAvgM is SGD with momentum on the mean step; FedAdam is Algorithm 2 of its paper."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.methods import Reply, Server
from fedbary.methods.fedadam import FedAdam
from fedbary.methods.fedavgm import FedAvgM


@given(st.integers(0, 10**6), st.floats(0.01, 2), st.floats(0, 0.99))
def test_it_is_torch_s_sgd_on_the_mean_step(seed, lr, momentum):
    generator = torch.Generator().manual_seed(seed)
    method = FedAvgM(server_lr=lr, server_momentum=momentum)
    weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    sgd = torch.optim.SGD([weight], lr, momentum=momentum)
    model = {"w": torch.zeros(4, dtype=torch.float64), "bn.running_var": torch.ones(2).double()}
    state = method.start(model)
    for number in range(6):
        sent = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        sizes = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
        moments = torch.full((2,), 2.0 + number).double()
        replies = [
            Reply(str(k), float(size), {"w": sent[k], "bn.running_var": moments})
            for k, size in enumerate(sizes)
        ]
        weight.grad = weight.detach() - (sizes / sizes.sum()) @ sent
        sgd.step()
        model, state = method.aggregate(Server(model, state), replies)
        torch.testing.assert_close(model["w"], weight.detach())
        torch.testing.assert_close(model["bn.running_var"], moments)


def alone(weight, moments):
    return [Reply("a", 1.0, {"w": weight, "bn.running_mean": moments})]


@given(st.integers(0, 10**6), st.floats(0.001, 1), st.floats(0, 0.99), st.floats(0, 0.999))
def test_it_is_torch_s_adam_with_the_correction_of_bias_undone(seed, lr, beta1, beta2):
    """θ − η m̂/(√v̂ + τ′) with η = lr (1 − β₁ᵗ)/√(1 − β₂ᵗ) and τ′ = τ/√(1 − β₂ᵗ)."""
    generator = torch.Generator().manual_seed(seed)
    method, tau = FedAdam(lr, beta1, beta2, 0.01), 0.01
    weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    adam = torch.optim.Adam([weight], lr, betas=(beta1, beta2))
    model = {"w": torch.zeros(4, dtype=torch.float64), "bn.running_mean": torch.zeros(1).double()}
    state = method.start(model)
    for t in range(1, 6):
        sent = torch.randn(4, generator=generator, dtype=torch.float64)
        weight.grad = weight.detach() - sent
        root = (1 - beta2**t) ** 0.5
        adam.param_groups[0]["lr"] = lr * (1 - beta1**t) / root
        adam.param_groups[0]["eps"] = tau / root
        adam.step()
        moments = torch.full((1,), 7.0 + t).double()
        model, state = method.aggregate(Server(model, state), alone(sent, moments))
        torch.testing.assert_close(model["w"], weight.detach())
        assert torch.equal(model["bn.running_mean"], moments)


def test_no_weight_moves_further_than_its_rate_however_large_the_step():
    method = FedAdam(server_lr=0.1, beta1=0.0, beta2=0.0)
    model = {"w": torch.zeros(3), "bn.running_mean": torch.zeros(1)}
    sent = torch.tensor([1e6, -1.0, 0.0])
    after, _ = method.aggregate(Server(model, {}), alone(sent, torch.zeros(1)))
    torch.testing.assert_close(after["w"], torch.tensor([0.1, -0.1, 0.0]), rtol=2e-3, atol=0)
