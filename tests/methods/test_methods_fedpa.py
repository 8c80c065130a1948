"""FedPA's step is the dense solve, the published recursion, and the way to the product's mode."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from torch import nn

from fedbary.inference import Training, local_method
from fedbary.methods import Local, Reply, Server
from fedbary.methods.fedpa import FedPA, posterior_delta


def drawn(seed, count, size):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(size, generator=generator, dtype=torch.float64),
        torch.randn(count, size, generator=generator, dtype=torch.float64),
    )


def published_recursion(start, samples, rho):
    """The O(ℓ² d) recursion over the samples of Al-Shedivat et al. (2021), appendix C."""
    delta, mean, previous = start - samples[0], samples[0], []
    for t in range(2, len(samples) + 1):
        u = samples[t - 1] - mean
        v = u.clone()
        for gamma, vk, uk in previous:
            v -= gamma * (vk @ u) / (1 + gamma * (vk @ uk)) * vk
        gamma = rho * (t - 1) / t
        uv, ud = u @ v, u @ delta
        delta = delta - (1 + gamma * (t * ud - uv) / (1 + gamma * uv)) * v / t
        previous.append((gamma, v, u))
        mean = mean + u / t
    return delta * (1 + (len(samples) - 1) * rho)


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 30), st.floats(0.0, 50.0))
def test_delta_is_the_dense_solve_and_the_published_recursion(seed, count, size, rho):
    start, samples = drawn(seed, count, size)
    r = 1 / (1 + (count - 1) * rho)
    covariance = r * torch.eye(size, dtype=torch.float64)
    if count > 1:
        deviations = samples - samples.mean(0)
        covariance += (1 - r) * deviations.t() @ deviations / (count - 1)
    dense = torch.linalg.solve(covariance, start - samples.mean(0))
    found = posterior_delta(start, samples, rho)
    torch.testing.assert_close(found, dense, rtol=1e-8, atol=1e-8)
    recursion = published_recursion(start, samples, rho)
    torch.testing.assert_close(found, recursion, rtol=1e-8, atol=1e-8)


def test_without_covariance_it_is_fedavg_s_step():
    start, samples = drawn(0, 5, 7)
    torch.testing.assert_close(posterior_delta(start, samples, 0.0), start - samples.mean(0))
    torch.testing.assert_close(posterior_delta(start, samples[:1], 3.0), start - samples[0])


def test_the_server_ends_at_the_mode_of_the_product_where_fedavg_does_not():
    """Clients with exact samples of their Gaussian posteriors, as many as give the covariance."""
    generator = torch.Generator().manual_seed(1)
    size, clients = 3, 4
    means = torch.randn(clients, size, generator=generator, dtype=torch.float64) * 3
    roots = torch.randn(clients, size, size, generator=generator, dtype=torch.float64)
    covariances = roots @ roots.mT + 0.2 * torch.eye(size, dtype=torch.float64)
    precisions = covariances.inverse()
    mode = torch.linalg.solve(precisions.sum(0), (precisions @ means[..., None]).sum(0))[:, 0]
    noise = torch.randn(clients, 200, size, generator=generator, dtype=torch.float64)
    samples = means[:, None] + noise @ torch.linalg.cholesky(covariances).mT
    method = FedPA(rho=1e6, server_lr=0.2, server_momentum=0.0)
    model, state = {"w": torch.zeros(size, dtype=torch.float64)}, {}
    for _ in range(50):
        deltas = [posterior_delta(model["w"], samples[k], method.rho) for k in range(clients)]
        replies = [Reply(str(k), 1.0, {"w": delta}) for k, delta in enumerate(deltas)]
        model, state = method.aggregate(Server(model, state), replies)
    torch.testing.assert_close(model["w"], mode, rtol=0, atol=0.4)
    assert (means.mean(0) - mode).norm() > 5 * (model["w"] - mode).norm()


class Network(nn.Sequential):
    """Conv (channels last), batch norm, linear."""

    def __init__(self):
        super().__init__(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 4))
        self.to(memory_format=torch.channels_last)


def local(epochs=4, server_round=1):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(50, 1, 8, 8, generator=generator)
    y = torch.randint(0, 4, (50,), generator=generator)
    torch.manual_seed(0)
    training = Training(epochs, 16, lr=0.05, momentum=0.9, weight_decay=0.01)
    nll = nn.functional.cross_entropy
    return Local(
        Network(), x, y, nll, local_method("variational"), training, 1.0, server_round, seed=3
    )


def plain_loop(job, burn_in):
    """SGD of PyTorch on the same batches; the mean iterate of each epoch after the burn-in."""
    network = Network()
    network.load_state_dict(job.model.state_dict())
    optimiser = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
    order, samples = torch.Generator().manual_seed(3), []
    for epoch in range(job.training.epochs):
        iterates = []
        for indices in torch.randperm(50, generator=order).split(16):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(job.x[indices]), job.y[indices]).backward()
            optimiser.step()
            iterates.append([p.detach().clone() for p in network.parameters()])
        if epoch >= burn_in:
            samples.append(
                [torch.stack(tensors).mean(0) for tensors in zip(*iterates, strict=True)]
            )
    return network, samples


def test_a_client_sends_delta_for_parameters_and_its_buffers():
    job, method = local(), FedPA(rho=0.3, burn_in=1)
    received = job.state()
    network, samples = plain_loop(job, 1)
    flat = torch.stack([torch.cat([t.reshape(-1) for t in sample]) for sample in samples])
    names = [name for name, _ in network.named_parameters()]
    start = torch.cat([received[name].reshape(-1) for name in names])
    expected = posterior_delta(start, flat, 0.3)
    reply = method.fit(job, received, {}).reply
    found = torch.cat([reply[name].reshape(-1) for name in names])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(reply["1.running_mean"], network[1].running_mean)
    assert reply.keys() == received.keys()
    assert all(reply[name].shape == received[name].shape for name in received)


def test_first_rounds_are_fedavg():
    method = FedPA(fedavg_rounds=2, server_lr=1.0, server_momentum=0.0)
    for server_round, is_fedavg in ((2, True), (3, False)):
        job = local(server_round=server_round)
        received = job.state()
        network, _ = plain_loop(job, 1)
        reply = method.fit(job, received, {}).reply
        model, _ = method.aggregate(Server(received, {}), [Reply("a", 5.0, reply)])
        same = all(
            torch.allclose(model[name], tensor, atol=1e-6)
            for name, tensor in network.state_dict().items()
        )
        assert same == is_fedavg


def test_the_server_s_momentum_moves_no_buffer():
    method = FedPA(server_lr=1.0, server_momentum=0.9)
    model = {"w": torch.zeros(2), "bn.running_var": torch.ones(2), "steps": torch.tensor(4)}
    state = method.start(model)
    for _ in range(3):
        reply = {
            "w": torch.ones(2),
            "bn.running_var": torch.full((2,), 3.0),
            "steps": torch.tensor(9),
        }
        model, state = method.aggregate(Server(model, state), [Reply("a", 1.0, reply)])
        assert (model["bn.running_var"] == 3).all() and model["steps"] == 9
    torch.testing.assert_close(model["w"], torch.full((2,), -(1 + 1.9 + 2.71)))


def test_a_buffer_that_nobody_trains_stays_as_it_is():
    job, method = local(), FedPA()
    job.model.register_buffer("scale", torch.tensor(2.0))
    received = job.state()
    reply = method.fit(job, received, {}).reply
    model, _ = method.aggregate(Server(received, {}), [Reply("a", 1.0, reply)])
    assert model["scale"] == 2.0


def test_an_epoch_must_be_left_to_sample():
    refused("local_epochs", lambda: FedPA(burn_in=4).fit(local(epochs=4), local().state(), {}))
