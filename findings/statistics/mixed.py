"""Coverage of the mixed model's intervals: python -m findings.statistics.mixed.

The federations are those of coverage.py. Each is the mathematics of a run of `task=glm
intercepts=random`, without messages, and all sites' integrals at once:
tests/tasks/test_random_intercepts.py holds that a run gives the same. Federations that are in
mixed.csv.xz already stay.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.special import expit, log_expit, logsumexp

from fedbary.aggregation.covariance import packed
from fedbary.inference._integrated import Intercepts
from fedbary.methods._method import Reply, Server
from fedbary.methods.newton import GRADIENT, HESSIAN, VALUE, Newton, mode_of, vector_of
from fedbary.trained.factors import of_newton
from findings.statistics.coverage import COUNT, PLAIN, SEED, drawn, mode

FILE, AT_ONCE, CLOSE = Path(__file__).with_name("mixed.csv.xz"), 100, 1e-5
TAUS = 1.0, 0.0
ABOUT = 20, (20, 60)
NODES = np.linspace(-13, 13, 241)
"""Values of a/τ: the trapezoidal rule is exact to rounding for τ up to 2 and 60 rows a site."""


def turned(held):
    """Return the contrasts of columns that are uncorrelated, of variance 1, and all sites' rows.

    These are the columns and an intercept (sites, n, 4), the outcomes (sites, n), and which of the
    n places hold a row.
    """
    x = np.concatenate([x for x, _ in held])[:, :3]
    centre, most = x.mean(0), max(len(y) for _, y in held)
    turn = np.linalg.inv(np.linalg.cholesky(np.cov(x.T, bias=True)))
    columns = np.eye(4)
    columns[:3, :3], columns[3, :3] = turn.T, -centre @ turn.T
    told, z = replace(PLAIN, columns=torch.from_numpy(columns)), np.zeros((len(held), most, 4))
    outcomes, holds = np.zeros((2, len(held), most))
    for place, (x, y) in enumerate(held):
        z[place, : len(y)] = np.c_[(x[:, :3] - centre) @ turn.T, np.ones(len(y))]
        outcomes[place, : len(y)], holds[place, : len(y)] = y, 1
    return told, z, outcomes, holds


def summed(z, y, holds, point):
    """Return the sums over sites of L, its slope and its Hessian, as `integrated` has a site's."""
    std, outputs = np.exp(point[-1]), (z @ point[:-1])[..., None] + np.exp(point[-1]) * NODES
    sign = (2 * y - 1)[..., None]
    log = (holds[..., None] * log_expit(sign * outputs)).sum(1) - NODES**2 / 2
    total = logsumexp(log, axis=1) + np.log(std * (NODES[1] - NODES[0]))
    share, p = np.exp(log - logsumexp(log, axis=1, keepdims=True)), expit(outputs)
    slopes = z.transpose(0, 2, 1) @ (holds[..., None] * (p - y[..., None]))
    across = np.broadcast_to(1 - NODES**2, (len(y), 1, len(NODES)))
    u = np.concatenate([slopes, across], 1)
    mean = (u @ share[..., None])[..., 0]
    bent = holds * ((p * (1 - p)) @ share[..., None])[..., 0]
    hessian = mean.T @ mean - ((u * share[:, None]) @ u.transpose(0, 2, 1)).sum(0)
    hessian[:-1, :-1] += np.einsum("kni,knj,kn->ij", z, z, bent)
    hessian[-1, -1] += 2 * (share @ NODES**2).sum()
    value = (point[-1] + np.log(2 * np.pi) / 2 - total).sum()
    return value, mean.sum(0), hessian


def fitted(held, prior_std=10.0):
    """Return the factors of the mixed model of all sites' rows, and the logarithm of τ."""
    told, z, y, holds = turned(held)
    method, rows, state = Newton(prior_std=prior_std), holds.astype(bool), {}
    layer, start = torch.nn.Linear(3, 1, dtype=torch.float64), mode(z[rows], y[rows])
    layer.weight.data[0], layer.bias.data[0] = torch.from_numpy(start[:3]), start[3]
    model = torch.nn.Sequential(Intercepts().double(), layer).state_dict()
    for _ in range(40):
        value, slope, hessian = summed(z, y, holds, vector_of(model).numpy())
        found = {VALUE: torch.tensor([value]), GRADIENT: torch.from_numpy(slope)}
        found[HESSIAN] = packed(torch.from_numpy(hessian))
        model, state = method.aggregate(Server(model, state), [Reply("all", 1, found)])
        if method.step_length(model, state) < CLOSE:
            return of_newton(method, state, told, {}), float(mode_of(state)[-1])
    raise ArithmeticError("no mode in 40 rounds")


def line(factors, log):
    """Return the estimates, their standard errors and τ, by their names."""
    names = factors.contrasts.terms
    found = dict(zip(names, factors.estimates, strict=True))
    found |= {f"{name} std": std for name, std in zip(names, factors.stds, strict=True)}
    return {"found tau": np.exp(log), **found}


def main():
    """Simulate the federations that are not in the file yet."""
    known = pd.read_csv(FILE) if FILE.exists() else pd.DataFrame()
    torch.set_num_threads(1)
    lines, done = known.to_dict("records"), known["number"].max() + 1 if len(known) else 0
    draws = {tau: np.random.default_rng(SEED) for tau in TAUS}
    for number in range(COUNT):
        for tau, draw in draws.items():
            held = drawn(draw, *ABOUT, tau, 0, False)
            if number >= done:
                lines.append({"tau": tau, "number": number, **line(*fitted(held))})
        if number >= done and (number + 1) % AT_ONCE == 0:
            pd.DataFrame(lines).round(5).to_csv(FILE, index=False)


if __name__ == "__main__":
    main()
