"""`intercepts=random`: the mixed model of all rows, whose sites draw their intercepts."""

import numpy as np
import pandas as pd
import pytest
import torch
from runs_of import INLINE
from scipy import stats
from scipy.optimize import minimize
from torch.nn.functional import softplus

import fedbary
from fedbary import client_app
from fedbary.errors import SettingError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve
from findings.statistics import mixed

SITES, ROWS = 6, 50
GRID = torch.linspace(-12, 12, 1201, dtype=torch.float64)


def log_binomial(outputs, y):
    """Return log p(y) of log-odds."""
    return y * outputs - softplus(outputs)


def log_poisson(outputs, y):
    """Return log p(y) of logarithms of rates, but for a constant."""
    return y * outputs - outputs.exp()


def mixed_model(x, y, log_likelihood, scale):
    """Return estimates, log τ and standard errors, by integrals on a grid and by BFGS."""
    design = torch.cat([torch.from_numpy(x), torch.ones(len(x), 1).double()], 1)
    y, sites = torch.from_numpy(y).double()[:, None], torch.arange(SITES).repeat_interleave(ROWS)

    def energy(point):
        log = torch.zeros(SITES, len(GRID)).double()
        likelihood = log_likelihood((design @ point[:-1])[:, None] + GRID, y)
        log = log.index_add(0, sites, likelihood) - GRID**2 / (2 * (2 * point[-1]).exp())
        prior = (2 * point[-1]).exp() / (2 * scale**2) - point[-1]
        return prior + SITES * point[-1] - log.logsumexp(1).sum()

    def both(point):
        slope, value = torch.func.grad_and_value(energy)(torch.from_numpy(point))
        return float(value), slope.numpy()

    found = minimize(both, np.zeros(x.shape[1] + 2), jac=True, options={"gtol": 1e-7}).x
    hessian = torch.autograd.functional.hessian(energy, torch.from_numpy(found))
    return found, torch.linalg.inv(hessian).diagonal().sqrt().numpy()


@pytest.mark.parametrize(
    ("family", "log_likelihood"), [("binomial", log_binomial), ("poisson", log_poisson)]
)
def test_the_table_is_that_of_the_mixed_model_of_all_rows(family, log_likelihood, tmp_path):
    draw = np.random.default_rng(5)
    x = draw.normal(size=(SITES * ROWS, 2)) @ [[1, 0.5], [0, 1]]
    x = np.c_[x, draw.normal(size=SITES).repeat(ROWS)]  # the last is the same at a site
    outputs = x @ [0.7, -0.4, 0.2] - 0.3 + draw.normal(size=SITES).repeat(ROWS)
    binary, counts = draw.random(len(x)) < 1 / (1 + np.exp(-outputs)), draw.poisson(np.exp(outputs))
    y = counts if family == "poisson" else binary.astype(int)
    table = pd.DataFrame(x, columns=["u", "v", "kind"]).assign(out=y)
    table.to_csv(tmp_path / "all.csv", index=False)
    parts, nodes = np.split(np.arange(len(x)), SITES), []
    for site, own in enumerate(parts):
        table.iloc[own].to_csv(tmp_path / f"{site}.csv", index=False)
        node = {"name": f"site {site}", "data-path": str(tmp_path / f"{site}.csv"), "budget": 0}
        nodes.append({**node, "min-cell": 0, "state-path": str(tmp_path / f"state {site}")})
    words = {"task": "glm", "target": "out", "dataset": f"{tmp_path}/all.csv"}
    words |= {"method": "Newton", "intercepts": "random", "clients": SITES, "prior_std": 1e4}
    words |= {"family": family}
    settings = resolve({**INLINE, **words, "rounds": 20})
    run(InlineGrid(client_app.app, nodes, settings.model_dump()), settings, tmp_path / "run")

    found = fedbary.load(tmp_path / "run").coefficients()
    point, stds = mixed_model(x, y, log_likelihood, scale=2.5)
    error = (found.table["estimate"].to_numpy() - point[:-1]) / stds[:-1]
    assert np.abs(error).max() < 1e-4
    assert np.abs(found.table["std"].to_numpy() / stds[:-1] - 1).max() < 1e-4
    half = (found.table["upper 95 %"] - found.table["estimate"]) / found.table["std"]
    normal, of_sites = stats.norm.ppf(0.975), stats.t(SITES - 2).ppf(0.975)
    np.testing.assert_allclose(half, [normal, normal, of_sites, of_sites])
    assert found.title.endswith("t with 4 degrees of freedom: kind, intercept")
    line = next(note for note in found.notes if note.startswith("Sites' intercepts"))
    assert f"standard deviation {np.exp(point[-1]):.3g}" in line
    if family == "binomial":
        held, log = mixed.fitted([(np.c_[x[own], np.ones(ROWS)], y[own]) for own in parts], 1e4)
        np.testing.assert_allclose(held.estimates, found.table["estimate"], atol=1e-4 * stds.min())
        np.testing.assert_allclose(held.stds, found.table["std"], rtol=1e-4)
        assert abs(log - point[-1]) < 1e-4 * stds[-1]


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ({"method": "PVI"}, "method"),
        ({"method": "Newton", "family": "multinomial"}, "intercepts"),
        ({"method": "Newton", "family": "gaussian"}, "intercepts"),
        ({"method": "Newton", "errors": "robust"}, "errors"),
    ],
)
def test_what_cannot_integrate_over_intercepts_is_refused(words, setting):
    held = {"task": "glm", "target": "out", "dataset": "rows.csv", "intercepts": "random"}
    with pytest.raises(SettingError) as caught:
        resolve({**INLINE, **held, **words})
    assert caught.value.setting == setting
