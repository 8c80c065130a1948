"""Rounds of sites, or of Newton's method by sums, end at the mode of the pooled rows.

The intercept is each site's own, or one of all.

The pooled mode is by Newton's method in NumPy. Some sites are such as have no fit of their own.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedbary.aggregation.covariance import Full, packed, unpacked
from fedbary.inference import Local, Training, local_method
from fedbary.inference._head import Head, Profiled
from fedbary.methods import Reply, Server
from fedbary.methods.newton import GRADIENT, HESSIAN, VALUE, Newton, mode_of, vector_of
from fedbary.methods.pvi import PVI
from fedbary.tasks._families import FAMILIES

STD = 10.0
WIDTH = 3


def sites(family, skew, broken, seed=0, count=5, rows_of=(50, 200)):
    """Return each site's columns and targets; sites' means differ by `skew` standard deviations."""
    rng = np.random.default_rng(seed)
    beta, found = np.array([0.8, -0.5, 0.3]), []
    for k in range(count):
        rows = int(rng.integers(*rows_of))
        x = rng.normal(size=(rows, WIDTH)) + skew * rng.normal(size=WIDTH)
        if broken and k == 0:
            x[:, 1] = 1.0  # a constant column
        eta, offset = x @ beta - 0.4, rng.uniform(-1, 1, rows)
        if family == "poisson":
            y = np.stack([rng.poisson(np.exp(np.minimum(eta + offset, 4))), offset], 1)
        else:
            logits = np.stack([np.zeros(rows), eta, 0.3 - 0.5 * eta][: 2 + (family != "binomial")])
            y = (logits + rng.gumbel(size=logits.shape)).argmax(0)
            if broken and k == 1:
                y = (x[:, 0] > x[:, 0].mean()).astype(int)  # separated
            if broken and k == 2:
                y = np.zeros(rows, dtype=int)  # a single class
        found.append((torch.from_numpy(x), torch.from_numpy(y)))
    return found


def pooled(parts, family, own_intercepts):
    """Return mode and standard errors of the slopes (and of the common intercept, the last)."""
    one_hot = np.repeat(np.eye(len(parts)), [len(x) for x, _ in parts], axis=0)
    ones = one_hot if own_intercepts else one_hot.sum(1, keepdims=True)
    x, y = (np.concatenate([part[i].numpy() for part in parts]) for i in (0, 1))
    x = np.concatenate([x, ones], 1)
    outputs = 2 if family == "multinomial" else 1
    w = np.zeros((outputs, x.shape[1]))
    for _ in range(100):
        f = x @ w.T
        if family == "poisson":
            rate = np.exp(f[:, 0] + y[:, 1])
            pull, bent = (rate - y[:, 0])[:, None], rate[:, None, None]
        else:
            p = np.exp(np.concatenate([np.zeros((len(f), 1)), f], 1))
            p = (p / p.sum(1, keepdims=True))[:, 1:]
            pull = p - np.eye(outputs + 1)[y][:, 1:]
            bent = np.einsum("nk,kl->nkl", p, np.eye(outputs)) - p[:, :, None] * p[:, None]
        slope = (pull.T @ x + w / STD**2).ravel()
        matrix = np.einsum("nkl,ni,nj->kilj", bent, x, x).reshape(w.size, w.size)
        matrix += np.eye(w.size) / STD**2
        step = np.linalg.solve(matrix, slope)
        w -= (step / max(1.0, np.abs(step).max())).reshape(w.shape)
    std = np.sqrt(np.diag(np.linalg.inv(matrix))).reshape(w.shape)
    kept = WIDTH if own_intercepts else WIDTH + 1
    return w[:, :kept], std[:, :kept]


def errors(parts, family, own_intercepts, rounds, dtype):
    """Return the errors after each round: of estimates in standard errors, of these in parts."""
    exact, std = pooled(parts, family, own_intercepts)
    nll = FAMILIES[family].nll
    nll = Profiled(nll, STD) if own_intercepts else nll
    model = nn.Sequential(nn.Linear(WIDTH, len(exact), bias=not own_intercepts).to(dtype))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    method = PVI(covariance="full", prior_std=STD)
    tensors, state, found = {n: t.clone() for n, t in model.state_dict().items()}, {}, []
    for _ in range(rounds):
        replies = []
        for k, (x, y) in enumerate(parts):
            sent = method.send(Server(tensors, state), str(k))
            inference = local_method("laplace")
            job = Local(model, x.to(dtype), y, nll, inference, Training(kl_weight=1.0), 1.0)
            replies.append(Reply(str(k), len(x), method.fit(job, sent, {}).reply))
        tensors, state = method.aggregate(Server(tensors, state), replies)
        expanded = method.expanded
        held = [s["precision"] for _, s in expanded.sites(state, expanded.structure(tensors))]
        matrix = unpacked(sum(held), exact.size) + torch.eye(exact.size) / STD**2
        now = torch.linalg.inv(matrix).diagonal().sqrt().numpy().reshape(std.shape)
        off = np.abs(expanded.mean(tensors).numpy() - exact) / std
        found.append((off.max(), np.abs(now / std - 1).max()))
    return found


EXACT = {torch.float64: 1e-6, torch.float32: 1e-5}
"""The errors of messages in float64 and float32."""


@pytest.mark.parametrize("own_intercepts", [False, True])
@pytest.mark.parametrize("family", ["binomial", "poisson", "multinomial"])
def test_rounds_end_at_the_pooled_mode_with_skewed_sites(family, own_intercepts):
    """Classes in float32 are tried with broken sites below."""
    parts = sites(family, 1.5, broken=False)
    for dtype in EXACT if family == "poisson" else [torch.float64]:
        found = errors(parts, family, own_intercepts, 6, dtype)
        assert found[2][0] < 0.03 and found[3][0] < 1e-5
        assert found[4][1] < 1e-5 and max(found[5]) < EXACT[dtype]


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("own_intercepts", [False, True])
@pytest.mark.parametrize("family", ["binomial", "multinomial"])
def test_broken_sites_do_not_keep_rounds_from_the_pooled_mode(family, own_intercepts, dtype):
    parts = sites(family, 1.0, broken=True)
    assert max(errors(parts, family, own_intercepts, 6, dtype)[-1]) < EXACT[dtype]


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize(("family", "rounds"), [("poisson", 4), ("multinomial", 6)])
def test_twenty_small_sites_end_there_too(family, rounds, dtype):
    parts = sites(family, 1.5, broken=False, count=20, rows_of=(25, 301))
    own_intercepts = dtype == torch.float32
    assert max(errors(parts, family, own_intercepts, rounds, dtype)[-1]) < EXACT[dtype]


@pytest.mark.parametrize("family", ["binomial", "poisson", "multinomial"])
def test_the_profiled_curvature_is_the_hessian_of_the_profiled_loss(family):
    ((x, y),) = sites(family, 0.5, broken=False, count=1)
    outputs = 2 if family == "multinomial" else 1
    nll = Profiled(FAMILIES[family].nll, 0.7)
    model = nn.Sequential(nn.Linear(WIDTH, outputs, bias=False).double())
    head = Head(Local(model, x, y, nll, local_method("laplace"), Training(), 1.0))
    weights = head.weights
    numeric = torch.zeros(weights.numel(), weights.numel()).double()
    for k in range(weights.numel()):
        move = torch.zeros(weights.numel()).double()
        move[k] = 1e-5
        ahead, behind = (head.gradient(weights + s * move.view_as(weights)) for s in (1, -1))
        numeric[k] = ((ahead - behind) / 2e-5).flatten()
    held = head.curvature(Full(outputs, WIDTH), weights)["precision"]
    torch.testing.assert_close(unpacked(held, weights.numel()), numeric, rtol=1e-5, atol=1e-4)
    own = nll.intercept(x @ weights.T, y)
    near = nll._at(own, x @ weights.T, y)
    assert all(nll._at(own + 0.01 * d, x @ weights.T, y) > near for d in (1, -1))


def by_sums(parts, family, own_intercepts, dtype=torch.float32, away=0):
    """Return the errors of Newton's method once it has settled, and how many rounds it took.

    With `away` another site of so many is silent in each round.
    """
    exact, std = pooled(parts, family, own_intercepts)
    nll = FAMILIES[family].nll
    nll = Profiled(nll, STD) if own_intercepts else nll
    model = nn.Sequential(nn.Linear(WIDTH, len(exact), bias=not own_intercepts).to(dtype))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    method, tensors, state, rounds = Newton(prior_std=STD), dict(model.state_dict()), {}, 0
    while not rounds or (rounds < 40 and method.step_length(tensors, state) > 1e-6):
        replies = []
        for k, (x, y) in enumerate(parts):
            job = Local(model, x.to(dtype), y, nll, local_method("laplace"), Training(), 1.0)
            if not away or k != rounds % away:
                replies.append(Reply(str(k), len(x), method.fit(job, tensors, {}).reply))
        tensors, state = method.aggregate(Server(tensors, state, clients=len(parts)), replies)
        rounds += 1
    now = torch.linalg.inv(method.precision(state)).diagonal().sqrt().numpy().reshape(std.shape)
    off = np.abs(mode_of(state).numpy().reshape(exact.shape) - exact) / std
    return max(off.max(), np.abs(now / std - 1).max()), rounds


@pytest.mark.parametrize("own_intercepts", [False, True])
@pytest.mark.parametrize("family", ["binomial", "poisson", "multinomial"])
def test_sums_end_at_the_pooled_mode_whatever_the_sites(family, own_intercepts):
    for seed in range(3):
        parts = sites(family, 1.5, broken=family != "poisson", seed=seed)
        error, rounds = by_sums(parts, family, own_intercepts, torch.float64)
        assert error < 1e-7 and rounds < 12


@given(st.integers(0, 10**6), st.lists(st.sets(st.integers(0, 3), min_size=1), max_size=6))
def test_silent_sites_change_nothing_where_likelihoods_are_quadratics(seed, rounds):
    """Whoever answers when: the mode is that of all sites which have answered."""
    draw = torch.Generator().manual_seed(seed)
    root, centre = torch.randn(4, WIDTH, WIDTH + 1, generator=draw).double(), torch.randn(4, WIDTH)
    bent, method = root @ root.mT, Newton(prior_std=STD)
    tensors, state, heard = {"l.weight": torch.zeros(1, WIDTH).double()}, {}, set()
    for who in rounds:
        v, replies, heard = vector_of(tensors), [], heard | who
        for k in sorted(who):
            move = v - centre[k].double()
            held = {VALUE: move @ bent[k] @ move[:, None] / 2, GRADIENT: bent[k] @ move}
            replies.append(Reply(str(k), 1.0, {**held, HESSIAN: packed(bent[k])}))
        tensors, state = method.aggregate(Server(tensors, state, clients=4), replies)
        if state["step/part"] < 1:
            return  # a longer way than one round's
        precision = bent[[*heard]].sum(0) + torch.eye(WIDTH) / STD**2
        slope = (bent[[*heard]] @ centre[[*heard], :, None].double()).sum(0)[:, 0]
        torch.testing.assert_close(mode_of(state), torch.linalg.solve(precision, slope))
        torch.testing.assert_close(method.precision(state), precision)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_sites_that_come_and_go_do_not_keep_sums_from_the_pooled_mode(family):
    """Each round a site of five is away, another each time."""
    for seed in range(3):
        parts = sites(family, 1.5, broken=family != "poisson", seed=seed)
        error, rounds = by_sums(parts, family, False, torch.float64, away=len(parts))
        assert error < 1e-4 and rounds < 20


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_rates_far_from_one_are_reached_from_zero(scale):
    """One intercept of all has to move by log of the rate; likelihoods overflow on the way."""
    parts = [
        (x * torch.tensor([1.0, 1.0, 30.0]), torch.stack([(scale * y[:, 0]).round(), y[:, 1]], 1))
        for x, y in sites("poisson", 0.5, broken=False)
    ]
    error, rounds = by_sums(parts, "poisson", False, torch.float64)
    assert error < 1e-6 and rounds < 40


@pytest.mark.parametrize("seed", range(8))
def test_a_sum_that_is_not_convex_is_descended_to_a_minimum(seed):
    """Sites answer with −log cosh of projections beside quadratics: Hessians of any sign.

    No step is short where the sum is not convex, so that rounds do not end there.
    """
    draw = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, 5, 4, generator=draw, dtype=torch.float64)
    start = torch.randn(1, 4, generator=draw, dtype=torch.float64)

    def energy(v, k):
        return 0.3 * ((v - b[k]) ** 2).sum() - 2 * torch.cosh(v @ a[k]).log()

    method, tensors, state, values = Newton(prior_std=STD), {"l.weight": start}, {}, []
    for _ in range(60):
        v, replies = vector_of(tensors), []
        for k in range(len(a)):
            f = lambda at, k=k: energy(at, k)  # noqa: E731
            hessian = torch.autograd.functional.hessian(f, v)
            held = {VALUE: f(v)[None], GRADIENT: torch.autograd.functional.jacobian(f, v)}
            replies.append(Reply(str(k), 1.0, {**held, HESSIAN: packed(hessian)}))
        tensors, state = method.aggregate(Server(tensors, state), replies)
        values.append(float(state[VALUE]) + float(state["sums/point"].square().sum()) / 2 / STD**2)
        convex = torch.linalg.eigvalsh(method.precision(state)).min() > 0
        assert convex or method.step_length(tensors, state) > 1e-3
    assert all(after <= before + 1e-8 for before, after in itertools.pairwise(values))
    assert method.step_length(tensors, state) < 1e-6
    assert convex
