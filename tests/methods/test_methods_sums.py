"""LDA and Ridge: the model and the Mahalanobis distance of all data in one place."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_t
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sums_of import CLASSES, examples, head, network, replies, state
from torch import nn
from torch.nn.functional import one_hot

from fedbary.errors import SettingError
from fedbary.methods import METHODS, Reply, Server
from fedbary.methods.lda import PRODUCTS, SHARES, evidence, pull
from fedbary.methods.ridge import PROBIT, best_ridge
from fedbary.strategies.gate import spoilers

NAMES = pytest.mark.parametrize("name", ["LDA", "Ridge"])


@NAMES
@given(seed=st.integers(0, 10**6), count=st.integers(5, 60), cuts=st.integers(1, 5))
@settings(max_examples=15)
def test_any_split_and_any_order_of_arrival_give_the_model_of_all_data(name, seed, count, cuts):
    method, (x, y) = METHODS[name](), examples(seed, count)
    by_class = y.argsort()  # as unlike as splits can be: clients of one class each, nearly
    parts = [part for part in by_class.chunk(cuts) if len(part)]
    sent = replies(method, x, y, parts)
    alone = head(method, replies(method, x, y, [torch.arange(count)]))
    near = {"rtol": 2e-3, "atol": 2e-3 * float(alone.abs().max())}
    torch.testing.assert_close(head(method, sent), alone, **near)
    late = head(method, sent[:1], sent[1:], sent[:1])  # a late client, and one that comes again
    torch.testing.assert_close(late, head(method, sent), rtol=1e-5, atol=1e-5)


def test_with_many_examples_lda_is_that_of_scikit_learn():
    x, y = examples(1, 20_000)
    x = x @ torch.tensor([[3.0, 1, 0, 0], [0, 1, 0, 0], [0, 2, 1, 0], [0, 0, 0, 0.2]])
    found = head(METHODS["LDA"](), replies(METHODS["LDA"](), x, y, [torch.arange(len(x))]))
    logits = x @ found[:, :-1].T + found[:, -1]
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(x.numpy(), y.numpy())
    expected = torch.tensor(theirs.predict_proba(x.numpy()))
    torch.testing.assert_close(logits.double().softmax(1), expected, rtol=0, atol=5e-3)


def test_the_evidence_is_the_product_of_predictives_of_one_example_after_another():
    x, y = examples(2, 7)
    x, mean, kappa = x.double()[:, :2], x.double()[:, :2].mean(0), 0.7
    counts = torch.bincount(y, minlength=CLASSES).double()
    centres = torch.stack([x[y == c].mean(0) if (y == c).any() else mean for c in range(CLASSES)])
    spread = (x - centres[y]).T @ (x - centres[y])
    held = (counts * kappa / (counts + kappa)).sqrt()[:, None] * (centres - mean)
    spread += held.T @ held
    log_p, strength = evidence(spread, counts, kappa)

    nu, psi = strength + 3, strength * spread.trace() / (len(x) * 2) * torch.eye(2).double()
    centre, seen = mean.repeat(CLASSES, 1), torch.full((CLASSES,), kappa).double()
    product = 0.0
    for z, c in zip(x, y, strict=True):
        shape = psi * (seen[c] + 1) / (seen[c] * (nu - 1))
        product += multivariate_t.logpdf(z, centre[c], shape, df=nu - 1)
        away = z - centre[c]
        psi = psi + seen[c] / (seen[c] + 1) * torch.outer(away, away)
        centre[c] += away / (seen[c] + 1)
        nu, seen[c] = nu + 1, seen[c] + 1
    assert log_p == pytest.approx(product, abs=1e-6)


def test_the_pull_is_the_variance_component_that_made_the_means():
    generator = torch.Generator().manual_seed(3)
    counts = torch.randint(5, 40, (400,), generator=generator).double()
    means = torch.randn(400, 3, generator=generator, dtype=torch.float64) / math.sqrt(8)
    y = torch.repeat_interleave(torch.arange(400), counts.long())
    x = means[y] + torch.randn(len(y), 3, generator=generator, dtype=torch.float64)
    centres = torch.zeros(400, 3, dtype=torch.float64).index_add_(0, y, x) / counts[:, None]
    within = (x - centres[y]).T @ (x - centres[y])
    assert pull(counts, centres - x.mean(0), within) == pytest.approx(8, rel=0.1)


@given(seed=st.integers(0, 10**6), count=st.integers(8, 40))
@settings(max_examples=10)
def test_the_ridge_is_where_the_density_of_the_targets_is_largest(seed, count):
    x, y = examples(seed, count)
    x, targets = x.double() - x.double().mean(0), one_hot(y, CLASSES).double()
    targets = targets[:, targets.sum(0) > 0]
    targets = targets - targets.mean(0)
    unexplained = targets.square().sum() / count  # by the one example that the prior is worth
    basis = torch.linalg.svd(torch.ones(1, count).double()).Vh[1:]  # what a free bias leaves

    def density(log_scale):
        covariance = basis @ (torch.eye(count) + x @ x.T / math.exp(log_scale)) @ basis.T
        left = basis @ targets
        squares = (left * torch.linalg.solve(covariance, left)).sum() + unexplained
        many = targets.shape[1]
        return float(many * torch.logdet(covariance) / 2 + many * count / 2 * squares.log())

    values, vectors = torch.linalg.eigh(x.T @ x)
    products, squares = targets.T @ x @ vectors, float(targets.square().sum())
    scale, noise = best_ridge(values.clamp_min(0), products, squares, count)
    low, high = (math.log(float(values.sum()) * part) for part in (1e-6, 10))
    best = minimize_scalar(density, bounds=(low, high), method="bounded")
    assert density(math.log(scale)) <= best.fun + 1e-2
    weight = products / (values + scale) @ vectors.T
    left = (targets - x @ weight.T).square().sum() + scale * weight.square().sum() + unexplained
    assert noise**2 == pytest.approx(float(left) / (targets.shape[1] * count))


@given(seed=st.integers(0, 10**6), count=st.integers(8, 60), cuts=st.integers(2, 5))
@settings(max_examples=10)
def test_ridge_is_what_afl_makes_of_the_clients_own_ridges(seed, count, cuts):
    """AFL adds clients' heads two by two, and takes their penalties out at the end."""
    x, y = examples(seed, count)
    parts = [part for part in y.argsort().chunk(cuts) if len(part)]
    found = head(METHODS["Ridge"](), replies(METHODS["Ridge"](), x, y, parts)).double()
    rows, targets = torch.cat([x, torch.ones(count, 1)], 1).double(), one_hot(y, CLASSES).double()
    one = torch.eye(rows.shape[1]).double()
    grams = [rows[part].T @ rows[part] + one for part in parts]
    heads = [torch.linalg.solve(gram, rows[part].T @ targets[part])
             for gram, part in zip(grams, parts, strict=True)]  # fmt: skip
    gram, weight = grams[0], heads[0]
    for its_gram, its_weight in zip(grams[1:], heads[1:], strict=True):
        both = torch.linalg.inv(gram + its_gram)
        sides = (gram, its_gram, weight), (its_gram, gram, its_weight)
        weight = sum(
            w - torch.linalg.solve(mine, other @ (w - both @ other @ w)) for mine, other, w in sides
        )
        gram = gram + its_gram
    centred, apart = x.double() - x.double().mean(0), targets - targets.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    scale, noise = best_ridge(
        values.clamp_min(0), apart.T @ centred @ vectors, float(apart.square().sum()), count
    )
    penalty = scale * one
    penalty[-1, -1] = 0
    expected = torch.linalg.solve(gram - len(parts) * one + penalty, gram @ weight).T
    expected = PROBIT / noise * expected
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3 * float(found.abs().max()))


@NAMES
def test_fewer_examples_than_features_and_a_class_that_nobody_holds(name):
    method = METHODS[name]()
    x, y = torch.tensor([[0.0, 0, 0, 1], [1.0, 0, 0, 1]]), torch.tensor([0, 1])
    found = head(method, replies(method, x, y, [torch.tensor([0]), torch.tensor([1])]))
    assert found.isfinite().all()
    assert (x @ found[:, :-1].T + found[:, -1]).argmax(1).tolist() == [0, 1]


@NAMES
@pytest.mark.parametrize(("key", "factor"), [(PRODUCTS, 0.3), (SHARES, 2.0), (PRODUCTS, -1.0)])
def test_sums_that_no_examples_have_are_refused(name, key, factor):
    method, (x, y) = METHODS[name](), examples(4, 30)
    (sound,) = replies(method, x, y, [torch.arange(30)])
    forged = Reply("b", 30, {**sound.tensors, key: factor * sound.tensors[key]})
    with pytest.raises(ValueError, match="sums|shares"):
        method.aggregate(Server(state(network()), {}), [sound, forged])


def test_what_does_not_fit_is_refused_with_its_size():
    with pytest.raises(SettingError, match="most_features: '4, whose products are 40 bytes'"):
        METHODS["LDA"](most_features=3).start(state(network()))
    with pytest.raises(SettingError, match="a last layer that is linear, with a bias"):
        METHODS["Ridge"]().start(state(nn.Linear(4, 3, bias=False)))


def calls_of(work):
    """Return how many functions some work calls."""
    count = 0

    def counted(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("name", ["LDA", "Ridge"])
def test_four_times_the_sites_cost_four_times_the_work(name, spoilt):
    """Counted in calls of functions, with what a strategy does to find a reply that spoils all."""
    method, (x, y) = METHODS[name](), examples(1, 800)
    (each,) = replies(method, x, y, [torch.arange(20)])
    bad = {key: -tensor for key, tensor in each.tensors.items()}
    before = {}
    model, spent = state(network()), []
    for many in (40, 160):
        sent = [Reply(str(k), 20.0, each.tensors) for k in range(many)]
        _, before = method.aggregate(Server(model, {}, 1), sent)
        if spoilt:
            sent[many // 3] = Reply(sent[many // 3].client, 20.0, bad)

        def attempt(some, before=before):
            method.aggregate(Server(model, before, 2), some)

        def work(sent=sent, attempt=attempt):
            if spoilt:
                reasons = spoilers(sent, attempt, lambda reply: 0.0)
                assert [k for k, why in enumerate(reasons) if why] == [len(sent) // 3]
            else:
                attempt(sent)

        spent.append(calls_of(work))
    assert spent[1] < (5.5 if spoilt else 4.1) * spent[0]


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
@settings(max_examples=15)
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
@settings(max_examples=15)
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
