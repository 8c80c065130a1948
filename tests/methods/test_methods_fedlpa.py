"""FedLPA: factors are those of the Fisher, the mode is the dense solve's, and least squares'."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from torch import nn

from fedbary.aggregation.covariance import packed
from fedbary.inference import Training, local_method
from fedbary.methods import Local, Reply, Server
from fedbary.methods._curvature import factors, layers, matrix, product_mode, tensors_of
from fedbary.methods._method import weighted_mean
from fedbary.methods.fedlpa import INPUTS, SLOPES, FedLPA


def local(network, x, y, nll=nn.functional.cross_entropy):
    training = Training(3, 16, lr=0.05)
    return Local(network, x, y, nll, local_method("variational"), training, 1.0, 1, seed=3)


def semi_definite(generator, size, rank=None):
    root = torch.randn(size, rank or size, generator=generator, dtype=torch.float64)
    return root @ root.T


def problem(seed, count, out, inner):
    generator = torch.Generator().manual_seed(seed)
    means = [
        torch.randn(out, inner, generator=generator, dtype=torch.float64) for _ in range(count)
    ]
    both = [
        (
            semi_definite(generator, inner) + 0.03 * torch.eye(inner),
            semi_definite(generator, out, 1) + 0.03 * torch.eye(out),
        )
        for _ in range(count)
    ]
    weights = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
    return means, both, (weights / weights.sum()).tolist()


@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), sides=st.sampled_from([(1, 6), (4, 5)]))
@settings(max_examples=15)
def test_the_mode_is_that_of_the_dense_solve(seed, count, sides):
    means, both, weights = problem(seed, count, *sides)
    found, distance = product_mode(means, both, weights)
    whole = sum(w * torch.kron(b, a) for w, (a, b) in zip(weights, both, strict=True))
    right = sum(
        w * torch.kron(b, a) @ m.flatten()
        for w, (a, b), m in zip(weights, both, means, strict=True)
    )
    expected = torch.linalg.solve(whole, right).reshape(sides)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert distance <= 1e-8


@given(seed=st.integers(0, 10**6), count=st.integers(1, 5))
@settings(max_examples=15)
def test_equal_networks_stay_and_equal_factors_are_the_mean_by_size(seed, count):
    means, both, weights = problem(seed, count, 3, 4)
    found, _ = product_mode([means[0]] * count, both, weights)
    torch.testing.assert_close(found, means[0], rtol=1e-6, atol=1e-6)
    found, _ = product_mode(means, [both[0]] * count, weights)
    mean = sum(w * m for w, m in zip(weights, means, strict=True))
    torch.testing.assert_close(found, mean, rtol=1e-6, atol=1e-6)


def convolutional():
    """A convolution with stride, padding and no bias, batch norm, dropout, linear layers."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 4, (2, 1)),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(24, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    ).to(memory_format=torch.channels_last)


def images(count=9):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 2, 5, 5, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


def test_of_one_example_a_linear_layer_s_factors_are_its_fisher():
    """And of many, the factors are the means of the examples'."""
    torch.manual_seed(0)
    network, (x, y) = convolutional().eval(), images()
    found = factors(local(network, x, y))
    assert list(found) == ["0", "3", "6", "8"]
    alone = [factors(local(network, x[k : k + 1], y[k : k + 1])) for k in range(len(x))]
    for layer, both in found.items():
        for i in (0, 1):
            mean = torch.stack([one[layer][i] for one in alone]).mean(0)
            torch.testing.assert_close(both[i], mean, rtol=1e-4, atol=1e-8)
    network.zero_grad()
    nn.functional.cross_entropy(network(x[:1]), y[:1]).backward()
    gradients = {name: p.grad for name, p in network.named_parameters()}
    for layer in ("6", "8"):
        whole = matrix(gradients, (f"{layer}.weight", f"{layer}.bias")).flatten()
        a, b = (factor.double() for factor in alone[0][layer])
        torch.testing.assert_close(torch.kron(b, a), whole.outer(whole), rtol=1e-3, atol=1e-9)


def test_a_convolution_s_factors_are_those_of_its_patches():
    torch.manual_seed(0)
    network, (x, y) = convolutional().eval(), images(3)
    a, b = factors(local(network, x, y))["0"]
    padded = nn.functional.pad(x, (1, 1, 1, 1))
    after = network[0](x).detach().requires_grad_()
    loss = nn.functional.cross_entropy(network[1:](after), y, reduction="sum")
    slopes = torch.autograd.grad(loss, after)[0]
    expected_a, expected_b = torch.zeros(18, 18), torch.zeros(3, 3)
    for i in range(3):
        for row in range(3):
            for column in range(3):
                patch = padded[i, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3].flatten()
                expected_a += patch.outer(patch) / 9 / 3
                expected_b += slopes[i, :, row, column].outer(slopes[i, :, row, column]) / 3
    torch.testing.assert_close(a, expected_a)
    torch.testing.assert_close(b, expected_b)


@pytest.mark.parametrize("count", [2, 5])
def test_local_least_squares_become_those_of_all_data(count):
    """One output and noise alike: the factors are the curvature, and little damping."""
    generator = torch.Generator().manual_seed(count)
    data, replies = [], []
    for k in range(count):
        x = torch.randn(30 + 10 * k, 4, generator=generator, dtype=torch.float64)
        x = x @ torch.randn(4, 4, generator=generator, dtype=torch.float64)
        y = x.sum(1) + 3 + torch.randn(len(x), generator=generator, dtype=torch.float64)
        wide = torch.cat([x, torch.ones(len(x), 1)], 1)
        data.append((wide, y))
        network = nn.Linear(4, 1).double()
        best = torch.linalg.lstsq(wide, y).solution
        network.weight.data, network.bias.data = best[None, :4].clone(), best[4:].clone()
        a, _ = factors(local(network, x, y, lambda out, y: (out[:, 0] - y).square().mean()))[""]
        one = packed(torch.ones(1, 1, dtype=torch.float64))
        sent = {**network.state_dict(), INPUTS: packed(a), SLOPES: one}
        replies.append(Reply(str(k), float(len(x)), sent))
    like = {"weight": torch.zeros(1, 4).double(), "bias": torch.zeros(1).double()}
    model, state = FedLPA(damping=1e-20).aggregate(Server(like, {}), replies)
    wide, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    expected = torch.linalg.lstsq(wide, y).solution
    torch.testing.assert_close(matrix(model, ("weight", "bias"))[0], expected, rtol=1e-5, atol=1e-5)
    far = matrix(weighted_mean(replies, list(like)), ("weight", "bias"))[0] - expected
    assert far.abs().max() > 0.01 and not state


def replies_of(network, count=3):
    x, y = images(24)
    method, received, replies = FedLPA(), dict(network.state_dict()), []
    for k in range(count):
        part = slice(8 * k, 8 * k + 8)
        own = convolutional()
        fitted = method.fit(local(own, x[part], y[part]), received, {})
        replies.append(Reply(str(k), 8.0 + k, fitted.reply))
    return method, received, replies


def test_a_reply_is_as_declared_and_what_is_no_layer_is_averaged():
    torch.manual_seed(0)
    method, model, replies = replies_of(convolutional())
    like = method.reply_like(model)
    assert {n: (t.shape, t.dtype) for n, t in like.items()} == {
        n: (t.shape, t.dtype) for n, t in replies[0].tensors.items()
    }
    found, _ = method.aggregate(Server(model, {}), replies)
    mean = weighted_mean(replies, list(model))
    covered = {name for names in layers(model).values() for name in names}
    for name, tensor in found.items():
        assert tensor.dtype == model[name].dtype and tensor.shape == model[name].shape
        assert torch.equal(tensor, mean[name]) == (name not in covered)


def test_hostile_factors_leave_the_model_sound_and_slow_ones_are_said():
    torch.manual_seed(0)
    method, model, replies = replies_of(convolutional())
    hostile = {
        name: -1e12 * torch.ones_like(t) if "/" in name else t
        for name, t in replies[0].tensors.items()
    }
    said = []
    sent = [Reply("9", 100.0, hostile), *replies]
    found, _ = method.aggregate(Server(model, {}, warn=said.append), sent)
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert all("layer" in line for line in said)


def test_a_matrix_is_the_layer_that_it_was():
    like = {"c.weight": torch.randn(4, 3, 2, 2), "c.bias": torch.randn(4)}
    (names,) = layers(like).values()
    back = tensors_of(matrix(like, names), names, like)
    assert all(torch.equal(back[name], like[name]) for name in like)


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(18, 3)),
        nn.Sequential(nn.Conv2d(2, 2, 3, padding="same"), nn.Flatten(), nn.Linear(50, 3)),
    ],
)
def test_a_layer_without_factors_is_named(network):
    refused("layer '0': 'Conv2d'", lambda: factors(local(network, *images(4))))


def test_a_layer_that_is_too_large_is_refused_with_its_size():
    model = {"f.weight": torch.zeros(2, 5000), "f.bias": torch.zeros(2)}
    for work in (FedLPA().start, FedLPA().reply_like):
        refused(r"5,001 in layer 'f', a factor of 200,080,008", work, model)
