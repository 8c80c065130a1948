"""Sites' rounds end at the mode of the pooled rows, with an intercept of each site's own or of all.

The pooled mode is by Newton's method in NumPy. Some sites are such as have no fit of their own.
"""

import numpy as np
import pytest
import torch
from torch import nn

from fedbary.aggregation.covariance import Full, unpacked
from fedbary.inference import Local, Training, local_method
from fedbary.inference._head import Head, Profiled
from fedbary.methods import Reply, Server
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


@pytest.mark.parametrize("own_intercepts", [False, True])
@pytest.mark.parametrize("family", ["binomial", "poisson", "multinomial"])
def test_rounds_end_at_the_pooled_mode_with_skewed_sites(family, own_intercepts):
    parts = sites(family, 1.5, broken=False)
    for dtype, most in ((torch.float64, 1e-6), (torch.float32, 1e-5)):
        found = errors(parts, family, own_intercepts, 6, dtype)
        assert found[2][0] < 0.03 and found[3][0] < 1e-5
        assert found[4][1] < 1e-5 and max(found[5]) < most


EXACT = {torch.float64: 1e-6, torch.float32: 1e-5}
"""The errors of messages in float64 and float32."""


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
