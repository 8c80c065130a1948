"""Robust standard errors of a federation are statsmodels' on the pooled rows."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from test_glm import FLAT, design, dummies, patients, settings_of, sites_of

import fedbary
from fedbary.errors import SettingError
from fedbary.server_app.engine.inline import run_inline

TARGETS = {"binomial": "died", "poisson": "visits", "gaussian": "cost"}


def found(folder, table, **words):
    """Estimates, standard errors and half widths of the table, and each row's site."""
    settings = settings_of(folder, table, **FLAT, **words)
    run_inline(settings, folder / "run")
    held = fedbary.load(folder / "run").coefficients()
    lower, upper = (held.table[f"{end} 95 %"] for end in ("lower", "upper"))
    parts = held.table["estimate"], held.table["std"], (upper - lower) / 2
    return [part.to_numpy() for part in parts], sites_of(settings), held


def oracle(table, family, intercepts, site, **how):
    """statsmodels' standard errors of the terms, levels of sites among the columns if they are."""
    x = design(table)
    names = list(x)
    if intercepts == "common":
        x, names = x.assign(intercept=1.0), [*names, "intercept"]
    else:
        x = pd.concat([x, pd.get_dummies(site, prefix="site").astype(float)], axis=1)
    y = table[TARGETS[family]]
    y = (y == "yes").astype(float) if family == "binomial" else y
    if family == "gaussian":
        return sm.OLS(y, x).fit(**how).bse[names].to_numpy()
    law = sm.families.Binomial() if family == "binomial" else sm.families.Poisson()
    offset = np.log(table.years) if family == "poisson" else None
    return sm.GLM(y, x, family=law, offset=offset).fit(tol=1e-12, **how).bse[names].to_numpy()


@pytest.mark.parametrize(("method", "intercepts"), [("PVI", "common"), ("Newton", "site")])
@pytest.mark.parametrize("family", TARGETS)
@pytest.mark.parametrize("by", ["rows", "groups", "sites"])
def test_robust_errors_are_those_of_the_pooled_rows(tmp_path, family, method, intercepts, by):
    rng = np.random.default_rng(2)
    table = patients().assign(patient=rng.integers(0, 200, 700))
    words = {"family": family, "target": TARGETS[family], "method": method}
    words |= {"intercepts": intercepts, "errors": "site" if by == "sites" else "robust"}
    words |= {"terms": "age year sex stage age:sex log(dose) dose^2"}
    words |= {"group": "patient"} if by == "groups" else {"leave_out": "patient"}
    words |= {"exposure": "years"} if family == "poisson" else {}
    words |= {"clients": 12} if by == "sites" else {}
    (_, std, half), site, held = found(tmp_path, table, **words)
    groups = {"groups": table.patient, "sites": site, "rows": None}[by]
    if by == "rows":
        expected = oracle(table, family, intercepts, site, cov_type="HC1")
        if family != "gaussian":  # statsmodels' GLM names HC1 what has no n/(n − k)
            left = 700 - len(std) - (4 if intercepts == "site" else 0)
            expected = expected * np.sqrt(700 / left)
    else:
        kwds = {"groups": groups}
        expected = oracle(table, family, intercepts, site, cov_type="cluster", cov_kwds=kwds)
        degrees = len(set(groups)) - 1
        assert half / std == pytest.approx(np.full(len(std), held_t(degrees)), rel=1e-6)
        assert f"t with {degrees} degrees" in held.title
    assert std == pytest.approx(expected, rel=1e-3)


def held_t(degrees):
    """The 97.5 % point of Student's t."""
    from scipy.stats import t

    return t.ppf(0.975, degrees)


def test_rows_of_one_patient_widen_intervals_where_the_model_does_not(tmp_path):
    """Fourfold rows: the model's errors are half of those of 150 patients; by groups they agree."""
    once = patients(150)[["age", "sex", "died"]].assign(patient=np.arange(150))
    table = pd.concat([once] * 4).sample(frac=1, random_state=0)
    words = {"target": "died", "terms": "age sex", "intercepts": "common", "group": "patient"}
    stds = {}
    for name, rows, errors in (
        ("once", once, "robust"),
        ("model", table, "model"),
        ("robust", table, "robust"),
    ):
        (tmp_path / name).mkdir()
        stds[name] = found(tmp_path / name, rows, errors=errors, **words)[0][1]
    assert stds["robust"] / stds["once"] == pytest.approx(np.ones(3), abs=0.02)
    assert (stds["model"] / stds["once"] < 0.6).all()


def test_errors_that_sites_did_not_tell_are_refused(tmp_path):
    words = {"target": "died", "terms": "age sex", "errors": "robust"}
    found(tmp_path, patients(300), **words)
    (tmp_path / "run" / "told.safetensors").unlink()
    run = fedbary.load(tmp_path / "run")
    with pytest.raises(SettingError, match="^errors: 'robust, and 0 of 4 sites told them"):
        run.coefficients()
    assert "robust" not in run.coefficients(anyway=True).title


def test_a_partial_likelihood_has_no_scores_of_rows(tmp_path):
    table = patients(200).assign(event=1)
    with pytest.raises(SettingError, match="^errors: 'robust'; expected model for family=cox"):
        settings_of(tmp_path, table, task="survival", family="cox", errors="robust")


def test_a_split_row_is_one_cluster(tmp_path):
    """Parts of a row by interval of time: statsmodels' clusters of the split rows."""
    rng = np.random.default_rng(0)
    table = patients(400)[["age", "sex"]].assign(event=rng.random(400) < 0.6)
    table["event"] = table.event.astype(int)
    table["days"] = (100 * rng.exponential(np.exp(-0.02 * (table.age - 60)))).round() + 1
    words = {"task": "survival", "target": "days", "terms": "age sex", "errors": "robust"}
    (estimate, std, _), _, held = found(tmp_path, table, **words, intervals=3)
    low = np.array([0.0, *fedbary.load(tmp_path / "run").facts["cuts"].tolist()])
    high = np.append(low[1:], np.inf)
    inside = np.clip(np.minimum(table.days.to_numpy()[:, None], high) - low, 0, None)
    row, part = np.nonzero(inside)
    ends = (table.days.to_numpy()[:, None] > low) & (table.days.to_numpy()[:, None] <= high)
    y = (ends & (table.event.to_numpy()[:, None] == 1))[row, part].astype(float)
    x = np.column_stack([dummies(table, "age", "sex").to_numpy()[row], np.eye(3)[part]])
    law = sm.GLM(y, x, family=sm.families.Poisson(), offset=np.log(inside[row, part]))
    fit = law.fit(tol=1e-12, cov_type="cluster", cov_kwds={"groups": row, "use_correction": False})
    # as rows of their own: n/(n − k)
    expected = fit.bse[:2] * np.sqrt(400 / (400 - 5))
    assert estimate[:2] == pytest.approx(fit.params[:2], abs=1e-3 * fit.bse[:2].min())
    assert std[:2] == pytest.approx(expected, rel=1e-3)
