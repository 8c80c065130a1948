"""ConjugateGaussian: the posterior of all rows, whose draws predict a Student's t."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student
from torch import nn

from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.methods import Local, Reply, Server
from fedbary.methods._method import Inherited
from fedbary.methods._sums import sites_of, state_of
from fedbary.methods.conjugategaussian import PRODUCTS, ConjugateGaussian
from fedbary.methods.ridge import best_ridge
from fedbary.variational.regressor import Regressor

WIDTH = 3


def rows(seed, count):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator) + 1
    return x, x @ torch.tensor([1.0, -2, 0]) + 3 + torch.randn(count, generator=generator)


def network():
    return Regressor(WIDTH, 0)


def after(method, x, y, parts):
    model = network()
    held = dict(model.state_dict())
    sent = [
        Reply(f"{k}", len(part), method.fit(Local(model, x[part], y[part]), held, {}).reply)
        for k, part in enumerate(parts)
    ]
    return method.aggregate(Server(held, {}), sent)


@given(seed=st.integers(0, 10**6), count=st.integers(3, 40), cuts=st.integers(1, 3))
@settings(max_examples=10)
def test_any_split_gives_the_posterior_of_all_rows(seed, count, cuts):
    method, (x, y) = ConjugateGaussian(networks=5), rows(seed, count)
    model, state = after(method, x, y, y.argsort().chunk(cuts))
    whole, alone = after(method, x, y, [torch.arange(count)])
    torch.testing.assert_close(model, whole, rtol=5e-3, atol=5e-3)
    drawn, members = method.predictive(model, state), method.predictive(whole, alone)
    torch.testing.assert_close(drawn.members, members.members, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("count", [6, 30])
def test_the_draws_predict_the_student_t_of_the_closed_form(count):
    method, (x, y) = ConjugateGaussian(networks=20_000), rows(7, count)
    model, state = after(method, x, y, [torch.arange(count)])
    members = method.predictive(model, state).members

    x, y, new = x.double(), y.double(), torch.tensor([2.0, 0, 1]).double()
    apart, away = x - x.mean(0), new - x.mean(0)
    values, vectors = torch.linalg.eigh(apart.T @ apart)
    products, squares = (y @ apart @ vectors)[None], float((y - y.mean()).square().sum())
    scale, noise = best_ridge(values, products, squares, count)
    inverse = torch.linalg.inv(apart.T @ apart + scale * torch.eye(WIDTH))
    weight = inverse @ apart.T @ y
    centre = y.mean() + away @ weight
    width = noise * math.sqrt(1 + 1 / count + away @ inverse @ away)
    bias = y.mean() - x.mean(0) @ weight
    torch.testing.assert_close(model["output.bias"][0].double(), bias, rtol=1e-3, atol=1e-3)

    means = (members["output.weight"][:, 0] @ new.float() + members["output.bias"][:, 0]).double()
    stds = (members["log_noise_var"] / 2).exp().double()
    exact = student(count, float(centre), width)
    for part in (0.05, 0.3, 0.5, 0.9, 0.99):
        below = torch.special.ndtr((exact.ppf(part) - means) / stds).mean()
        assert float(below) == pytest.approx(part, abs=0.01)


def test_what_is_no_linear_regression_or_no_sum_is_refused():
    method = ConjugateGaussian()
    with pytest.raises(SettingError, match="task=regression with noise=learned"):
        method.start(dict(Regressor(WIDTH, 0, 0, "none").state_dict()))
    x, y = rows(1, 9)
    sent = method.fit(Local(network(), x, y), held := dict(network().state_dict()), {}).reply
    for forged in (2 * sent[PRODUCTS], sent[PRODUCTS] - 1):
        with pytest.raises(ValueError, match="ones|no examples"):
            method.aggregate(Server(held, {}), [Reply("a", 9.0, {PRODUCTS: forged})])


class Bare(nn.Linear):
    """A network whose only layer is the network itself: its tensors are `weight` and `bias`."""

    def __init__(self):
        super().__init__(WIDTH, 1)
        self.log_noise_var = nn.Parameter(torch.zeros(()))


def test_a_network_that_is_its_own_layer_has_the_posterior_of_one_that_holds_it():
    """Its draws are `draws/weight`, which were taken for a site: further rounds failed."""
    method, (x, y) = ConjugateGaussian(networks=7), rows(3, 40)
    ends = []
    for model in (Bare(), network()):
        held, state = dict(model.state_dict()), {}
        sent = [
            Reply(str(k), len(part), method.fit(Local(model, x[part], y[part]), held, {}).reply)
            for k, part in enumerate(torch.arange(40).chunk(3))
        ]
        for round_ in (1, 2):
            held, state = method.aggregate(Server(held, state, round_), sent)
        assert sorted(sites_of(state)) == ["0", "1", "2"]
        held, state = method.inherit(held, Inherited(Posterior(held, {}), state))
        held, state = method.aggregate(Server(held, state, 1), [Reply("3", 9.0, sent[0].tensors)])
        others = {site: sums for site, sums in sites_of(state).items() if site != "3"}
        without, _ = method.model_of(Server(held, {}, 1), state_of(others))
        ends.append([tensor.flatten() for model in (held, without) for tensor in model.values()])
    torch.testing.assert_close(*map(sorted_by_size, ends), rtol=0, atol=0)
    assert len(method.predictive(*method.aggregate(Server(held, state, 2), [])).members) == 3


def sorted_by_size(tensors):
    """Return tensors in an order that names do not set."""
    return sorted(tensors, key=lambda tensor: (len(tensor), float(tensor.sum())))
