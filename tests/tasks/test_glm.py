"""A federation's coefficients and standard errors are those of the pooled rows, by statsmodels."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch
from runs_of import INLINE, lines

import fedbary
from fedbary.aggregation.covariance import Full, unpacked
from fedbary.aggregation.sums import select_prefix
from fedbary.data.deal import client_rows
from fedbary.methods import method_of
from fedbary.runs.checkpoints import load_checkpoint
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import task_of

FLAT = {"prior_std": 1000.0}
"""A prior that adds nothing to the likelihood, as statsmodels has none."""


def patients(rows=700, seed=0):
    """Rows whose columns are correlated, with a year far from 0, and outcomes of each family."""
    rng = np.random.default_rng(seed)
    age, year = rng.normal(60, 10, rows), rng.integers(2010, 2020, rows)
    sex = rng.choice(["male", "female"], rows, p=[0.6, 0.4])
    stage = rng.choice(["I", "II", "III"], rows, p=[0.3, 0.5, 0.2])
    dose = np.exp(rng.normal(0, 0.5, rows) + 0.02 * (age - 60))
    old, male = (age - 60) / 10, sex == "male"
    eta = -1 + 0.5 * old + 0.6 * male + 0.8 * (stage == "III") + 0.3 * old * male - 0.3 * dose
    years = rng.uniform(0.3, 4, rows)
    logits = np.stack([np.zeros(rows), eta, 0.4 - 0.5 * old], 1)
    kinds = np.array(["a", "b", "c"])[(logits + rng.gumbel(size=logits.shape)).argmax(1)]
    held = {"age": age, "year": year, "sex": sex, "stage": stage, "dose": dose, "years": years}
    held["died"] = np.where(rng.random(rows) < 1 / (1 + np.exp(-eta)), "yes", "no")
    held |= {"visits": rng.poisson(years * np.exp(0.5 * eta)), "kind": kinds}
    return pd.DataFrame(held | {"cost": 5000 + 900 * eta + rng.normal(0, 700, rows)})


def settings_of(folder, table, **words):
    table.to_csv(folder / "rows.csv", index=False)
    about = {**INLINE, "task": "glm", "dataset": str(folder / "rows.csv"), "clients": 4}
    return resolve({**about, "min_examples": 5, **words})


def fitted(folder, table, **words):
    """Return estimates and standard errors (outcomes, terms), the terms, and the run's settings."""
    settings = settings_of(folder, table, **words)
    run_inline(settings, folder / "run")
    trained = fedbary.load(folder / "run")
    by = trained.task.contrasts(trained.signature, trained.facts)
    model = trained.network.state_dict()
    expanded = method_of(settings).expanded
    mean, structure = expanded.mean(model), expanded.structure(model)
    assert isinstance(structure, Full)
    state = select_prefix("method.", load_checkpoint(folder / "run", "last").strategy)
    sites = [site["precision"] for _, site in expanded.sites(state, structure)]
    precision = (
        unpacked(sum(sites), mean.numel()) + torch.eye(mean.numel()) * expanded.prior_precision
    )
    std = (by.matrix @ torch.linalg.inv(precision) @ by.matrix.T).diagonal().sqrt()
    estimate = by.outputs @ mean @ by.columns.T + by.offset
    return estimate.numpy(), std.view_as(estimate).numpy(), by.terms, settings


def near(found, oracle, std, most):
    """Assert estimates and standard errors within so many standard errors of an oracle's."""
    assert np.abs((found[0] - oracle) / std).max() < most
    assert np.abs(found[1] / std - 1).max() < most


def dummies(table, *columns, **others):
    """Return the columns, levels against references as 0/1, and others, by name."""
    found = {}
    for name in columns:
        if table[name].dtype == object:
            reference = table[name].value_counts().idxmax()
            for level in sorted(set(table[name]) - {reference}):
                found[f"{name}={level}"] = (table[name] == level).astype(float)
        else:
            found[name] = table[name].astype(float)
    return pd.DataFrame(found | others)


def sites_of(settings):
    """Return the number of the site of each row."""
    task = task_of(settings)
    found = np.zeros(len(task.held.x), dtype=int)
    for number, rows in enumerate(client_rows(task.held, task.deal, settings.clients)):
        found[rows] = number
    return found


TERMS = "age year sex stage age:sex log(dose) dose^2"


def design(table):
    held = dummies(table, "age", "year", "sex", "stage")
    held["age:sex=female"] = table.age * held["sex=female"]
    held["log(dose)"], held["dose^2"] = np.log(table.dose), table.dose**2
    return held


def of_classes(y, x):
    """Return statsmodels' estimates and standard errors (outcomes, terms)."""
    (q, r), codes = np.linalg.qr(x), y.astype("category").cat.codes.to_numpy()
    fit = sm.MNLogit(codes, q).fit(disp=0, method="newton", tol=1e-12)
    back, outcomes = np.linalg.inv(r), fit.params.shape[1]
    every = np.kron(np.eye(outcomes), back)
    std = np.sqrt(np.diag(every @ fit.cov_params() @ every.T)).reshape(outcomes, -1)
    return (back @ fit.params).T, std


@pytest.mark.parametrize("family", ["binomial", "poisson", "multinomial", "gaussian"])
@pytest.mark.parametrize("intercepts", ["common", "site"])
def test_the_table_is_that_of_the_pooled_rows(tmp_path, family, intercepts):
    table = patients()
    target = {"binomial": "died", "poisson": "visits", "multinomial": "kind", "gaussian": "cost"}
    words = {"family": family, "target": target[family], "terms": TERMS, "intercepts": intercepts}
    if family == "poisson":
        words["exposure"] = "years"
    *found, terms, settings = fitted(
        tmp_path, table, alpha=1.0, partition="quantity", **words, **FLAT
    )
    x = design(table)
    names = list(x)
    if intercepts == "common":
        x["intercept"] = 1.0
        names.append("intercept")
    else:
        x = pd.concat([x, pd.get_dummies(sites_of(settings), prefix="site").astype(float)], axis=1)
    assert list(terms) == names
    y = table[target[family]]
    if family == "multinomial":
        oracle, std = (part[:, : len(names)] for part in of_classes(y, x.to_numpy()))
    elif family == "gaussian":
        fit = sm.OLS(y, x).fit()
        oracle, std = fit.params[names].to_numpy(), fit.bse[names].to_numpy()
    else:
        law = sm.families.Binomial() if family == "binomial" else sm.families.Poisson()
        offset = np.log(table.years) if family == "poisson" else None
        y = (y == "yes").astype(float) if family == "binomial" else y
        fit = sm.GLM(y, x, family=law, offset=offset).fit(tol=1e-12)
        oracle, std = fit.params[names].to_numpy(), fit.bse[names].to_numpy()
    near(found, oracle, std, 1e-4)
    assert len(lines(tmp_path / "run")) <= 8
