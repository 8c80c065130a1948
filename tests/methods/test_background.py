"""The relative Mahalanobis distance: from sums what it is from the data."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sums_of import CLASSES, examples, network, replies, state
from torch.nn.functional import one_hot

from fedbary.methods import METHODS, Server
from fedbary.methods.lda import evidence, pull
from fedbary.methods.ridge import best_ridge

NAMES = pytest.mark.parametrize("name", ["LDA", "Ridge"])


def relative(x, centres, shares, within):
    """The distance by its definition, in numpy."""
    mean = shares @ centres
    apart = centres - mean
    whole = within + apart.T @ (shares[:, None] * apart)
    near = cdist(x, centres, "mahalanobis", VI=np.linalg.inv(within)) ** 2
    usual = cdist(x, mean[None], "mahalanobis", VI=np.linalg.inv(whole))[:, 0] ** 2
    return near.min(1) - usual


def by_sums(name, x, y, at, cuts=3):
    method = METHODS[name]()
    parts = [part for part in torch.arange(len(x)).chunk(cuts) if len(part)]
    model, kept = method.aggregate(Server(state(network()), {}), replies(method, x, y, parts))
    logits = at @ model["0.weight"].T + model["0.bias"]
    return method.predictive(model, kept).background.distance(logits)


def moments(x, y):
    """Counts, means of the classes that are held, and scatters within and in all, in float64."""
    x, counts = x.double(), torch.bincount(y, minlength=CLASSES).double()
    held = counts > 0
    centres = (one_hot(y, CLASSES).double().T @ x)[held] / counts[held][:, None]
    places = torch.cumsum(held, 0)[y] - 1
    left, apart = x - centres[places], x - x.mean(0)
    return counts[held], centres, left.T @ left, apart.T @ apart


@given(seed=st.integers(0, 10**6), count=st.integers(6, 60), cuts=st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_of_lda_it_is_that_of_the_data_under_its_own_gaussians(seed, count, cuts):
    x, y = examples(seed, count)
    at = 3 * torch.randn(20, x.shape[1], generator=torch.Generator().manual_seed(seed))
    counts, centres, within, _ = moments(x, y)
    mean = x.double().mean(0)
    kappa = pull(counts, centres - mean, within)
    between = (counts * kappa / (counts + kappa)).sqrt()[:, None] * (centres - mean)
    spread = within + between.T @ between
    _, strength = evidence(spread, counts, kappa)
    prior = strength * spread.trace() / (count * len(spread)) * torch.eye(len(spread)).double()
    pulled = mean + (counts / (counts + kappa))[:, None] * (centres - mean)
    covariance = (spread + prior) / (count + strength)
    expected = relative(at.double(), *(t.numpy() for t in (pulled, counts / count, covariance)))
    found = by_sums("LDA", x, y, at, cuts)
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=1e-2 * max(1.0, scale))


@given(seed=st.integers(0, 10**6), count=st.integers(10, 60))
@settings(max_examples=15, deadline=None)
def test_of_ridge_it_is_so_with_its_penalty_in_the_covariance(seed, count):
    x, y = examples(seed, count)
    at = 3 * torch.randn(20, x.shape[1], generator=torch.Generator().manual_seed(seed))
    counts, centres, _, whole = moments(x, y)
    values, vectors = torch.linalg.eigh(whole)
    products = counts[:, None] * (centres - x.double().mean(0)) @ vectors
    squares = float((counts - counts**2 / count).sum())
    three = torch.cat([products, products.new_zeros(CLASSES - len(products), len(values))])
    penalty, _ = best_ridge(values.clamp_min(0), three, squares, count)
    apart = (counts / count).sqrt()[:, None] * (centres - x.double().mean(0))
    within = (whole + penalty * torch.eye(len(whole)).double()) / count - apart.T @ apart
    expected = relative(at.double(), *(t.numpy() for t in (centres, counts / count, within)))
    found = by_sums("Ridge", x, y, at)
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=1e-2 * max(1.0, scale))


@NAMES
def test_with_many_examples_it_is_that_of_the_paper(name):
    """Means of the classes, their pooled covariance, and the covariance of all, from the data."""
    x, y = examples(7, 20_000)
    x = x @ torch.tensor([[3.0, 1, 0, 0], [0, 1, 0, 0], [0, 2, 1, 0], [0, 0, 0, 0.2]])
    counts, centres, within, whole = (t.numpy() for t in moments(x, y))
    at = 4 * torch.randn(200, x.shape[1], generator=torch.Generator().manual_seed(7))
    near = cdist(at, centres, "mahalanobis", VI=np.linalg.inv(within / len(x))) ** 2
    mean = x.double().mean(0)[None]
    usual = cdist(at, mean, "mahalanobis", VI=np.linalg.inv(whole / len(x)))[:, 0] ** 2
    expected = near.min(1) - usual
    np.testing.assert_allclose(by_sums(name, x, y, at), expected, rtol=2e-2, atol=0.1)


@NAMES
def test_a_class_that_nobody_holds_is_nobody_s_nearest(name):
    x, y = examples(8, 200)
    x, y = x[y < 2], y[y < 2]
    found = by_sums(name, x, y, x)
    assert found.isfinite().all()
    counts, centres, within, whole = (t.numpy() for t in moments(x, y))
    assert len(counts) == 2
    far = by_sums(name, x, y, 100 * torch.ones(1, x.shape[1]))
    assert float(far) > float(found.max())
