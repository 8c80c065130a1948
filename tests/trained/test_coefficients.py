"""Coefficients are those that statsmodels finds in the sites' rows in one place."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch
from runs_of import rows
from runs_of_sums import chosen
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects

import fedbary
from fedbary.commands.use import coefficients, forget
from fedbary.data.deal import client_rows
from fedbary.errors import SettingError
from fedbary.server_app.engine.inline import run_inline
from fedbary.trained.coefficients import counted, heterogeneity, tabulated

SITES = {"method": "PVI", "inference": "laplace", "covariance": "full", "prior_std": 10.0,
         "bayesian_layers": 0, "rounds": 6, "task": "tables"}  # fmt: skip
RUNS = {
    "dead": {**SITES, "alpha": 3.0},
    "grade": {**SITES, "alpha": 2.0},
    "days": {"method": "ConjugateGaussian", "task": "regression", "noise": "learned",
             "partition": "iid"},
    "share": {"method": "Ridge", "task": "tables", "alpha": 3.0},
}  # fmt: skip
OTHERS = ["dead", "grade", "days"]


def patients(count=900):
    """Columns and targets of three kinds; the first column lies far from 0."""
    draw = np.random.default_rng(0)
    born, bmi = draw.normal(1960, 12, count), draw.normal(27, 4, count)
    sex, stage = draw.choice(["f", "m"], count), draw.choice(["I", "II", "III"], count)
    eta = -0.03 * (born - 1960) + 0.08 * (bmi - 27) + 0.5 * (sex == "m") + 0.8 * (stage == "III")
    noise = draw.logistic(size=(3, count))
    dead = np.where(eta - 0.5 + noise[0] > 0, "yes", "no")
    grade = np.digitize(eta + noise[1], [-0.5, 1.0])
    table = {"born": born, "bmi": bmi, "sex": sex, "stage": stage}
    return pd.DataFrame({**table, "dead": dead, "grade": grade, "days": 9 + 2 * eta + noise[2]})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of four sites for each target: the model, the table, the design of each site."""
    place, whole, known = tmp_path_factory.mktemp("runs"), patients(), {}

    def make(name):
        if name not in known:
            target = "dead" if name == "share" else name
            left_out = [other for other in OTHERS if other != target]
            whole.drop(columns=left_out).to_csv(place / f"{name}.csv", index=False)
            words = {"dataset": str(place / f"{name}.csv"), "target": target, "holdout": 0.0}
            words |= {"clients": 4, "min_examples": 60, **RUNS[name]}
            run_inline(chosen("tables", **words), place / name)
            trained = fedbary.load(place / name)
            dealt = client_rows(trained.task.held, trained.task.deal, 4)
            known[name] = trained, trained.coefficients(), [whole.iloc[d] for d in dealt]
        return known[name]

    return make


def design(table):
    """Return the columns with levels against the first, and a one, in the table's order."""
    levels = {f"{c}={v}": table[c] == v for c, v in
              (("sex", "m"), ("stage", "II"), ("stage", "III"))}  # fmt: skip
    return pd.DataFrame({"born": table.born, "bmi": table.bmi, **levels, "one": 1.0}).astype(float)


def fitted(name, table):
    """Return statsmodels' estimates and standard errors, in the order of ours."""
    x = design(table)
    if name == "dead":
        found = sm.GLM((table.dead == "yes").astype(float), x, sm.families.Binomial()).fit(
            tol=1e-12
        )
    elif name == "grade":
        found = sm.MNLogit(table.grade, x).fit(method="newton", maxiter=99, disp=False)
    else:
        y = table.days if name == "days" else (table.dead == "yes").astype(float)
        found = sm.OLS(y, x).fit()
    by_outcome = [np.asarray(each).T.flatten() for each in (found.params, found.bse)]
    return *by_outcome, found


@pytest.mark.parametrize("name", ["dead", "grade"])
def test_estimates_and_deviations_are_those_of_maximum_likelihood(name, made):
    _, found, sites = made(name)
    estimates, stds, _ = fitted(name, pd.concat(sites))
    table = found.table
    error = (table["estimate"] - estimates) / stds
    assert error.abs().max() < 1e-3
    np.testing.assert_allclose(table["std"], stds, rtol=1e-3)
    np.testing.assert_allclose(error, table["shift by prior"], atol=2e-5)
    np.testing.assert_allclose(table["odds ratio"], np.exp(table["estimate"]))


@pytest.mark.parametrize("name", ["days", "share"])
def test_sums_are_ordinary_least_squares_with_t_intervals(name, made):
    _, found, sites = made(name)
    estimates, stds, by = fitted(name, pd.concat(sites))
    table = found.table
    assert np.abs((table["estimate"] - estimates) / stds).max() < 2e-6
    np.testing.assert_allclose(table["std"], stds, rtol=1e-6)
    ends = (table[["lower 95 %", "upper 95 %"]] - by.conf_int().to_numpy()).abs().max(axis=1)
    assert (ends / stds).max() < 4e-6
    for place, rows_of_site in enumerate(sites):
        others = pd.concat([s for i, s in enumerate(sites) if i != place])
        estimates, stds, _ = fitted(name, others)
        left = table[f"without partition {place}"]
        assert np.abs((left - estimates) / stds).max() < 1e-4
        estimates, stds, _ = fitted(name, rows_of_site)
        own = table[f"partition {place}"]
        assert np.abs((own - estimates) / stds).max() < 1e-4
        np.testing.assert_allclose(table[f"partition {place} std"], stds, rtol=1e-4)


def test_a_site_s_own_estimates_and_those_without_it_are_right_or_left_empty(made):
    _, found, sites = made("dead")
    empty = 0
    for place, rows_of_site in enumerate(sites):
        estimates, stds, _ = fitted("dead", rows_of_site)
        own = found.table[f"partition {place}"]
        assert np.abs((own - estimates) / stds).max() < 0.02
        others = pd.concat([s for i, s in enumerate(sites) if i != place])
        estimates, stds, _ = fitted("dead", others)
        left = found.table[f"without partition {place}"]
        empty += left.isna().all()
        assert left.isna().all() or np.abs((left - estimates) / stds).max() < 0.1
    assert 0 < empty < 4
    assert any(note.startswith("Not known from here") for note in found.notes)
    assert any(note.startswith("Sites do not have one set") for note in found.notes)


def test_rows_and_events_are_counted_at_each_level(made):
    _, found, sites = made("share")
    whole, x = pd.concat(sites), design(pd.concat(sites))
    is_level = [name.startswith(("sex", "stage")) for name in x]
    assert list(found.table["rows"]) == [
        str(int(n)) if level else str(len(x)) for n, level in zip(x.sum(), is_level, strict=True)
    ]
    dead = x[whole.dead == "yes"]
    wanted = [int(n) if level else len(dead) for n, level in zip(dead.sum(), is_level, strict=True)]
    assert list(found.table["events"]) == list(map(str, wanted))
    assert (counted(4.0), counted(5.0), counted(np.nan)) == ("<5", "5", "")


@pytest.mark.parametrize("seed", range(12))
def test_heterogeneity_is_dersimonian_s_and_laird_s_with_hartung_s_and_knapp_s_interval(seed):
    draw = np.random.default_rng(seed)
    stds, tau = draw.uniform(0.1, 3, draw.integers(3, 12)), (0.0, 0.5, 3.0)[seed % 3]
    estimates = draw.normal(1, np.sqrt(stds**2 + tau**2))
    found = heterogeneity(np.append(estimates, np.nan), np.append(stds, np.nan), 0.9)
    with np.errstate(invalid="ignore"):  # its τ² may be negative
        by = combine_effects(estimates, stds**2, method_re="dl")
    assert found.sites == len(stds)
    np.testing.assert_allclose([found.q, found.p], [by.q, by.test_homogeneity().pvalue])
    np.testing.assert_allclose([found.i2, found.tau**2], np.clip([by.i2, by.tau2], 0, None))
    u = 1 / (stds**2 + found.tau**2)
    mean = np.average(estimates, weights=u)
    spread = np.average((estimates - mean) ** 2, weights=u) / (len(u) - 1)
    if found.tau:
        np.testing.assert_allclose([mean, spread], [by.mean_effect_re, by.var_hksj_re])
    half = stats.t(len(u) - 1).ppf(0.95) * np.sqrt(max(spread, 1 / u.sum()))
    np.testing.assert_allclose(
        [found.mean, found.low, found.high], mean + half * np.array([0, -1, 1])
    )
    new = stats.t(len(u) - 2).ppf(0.95) * np.sqrt(max(spread, 1 / u.sum()) + found.tau**2)
    np.testing.assert_allclose([found.new_low, found.new_high], [mean - new, mean + new])


def test_it_says_of_thirteen_trials_of_a_vaccine_what_is_published():
    """BCG against tuberculosis: Colditz et al. 1994, as analysed in the manual of metafor."""
    cases = np.array([4, 6, 3, 62, 33, 180, 8, 505, 29, 17, 186, 5, 27])
    wells = np.array(
        [119, 300, 228, 13536, 5036, 1361, 2537, 87886, 7470, 1699, 50448, 2493, 16886]
    )
    cases_0 = np.array([11, 29, 11, 248, 47, 372, 10, 499, 45, 65, 141, 3, 29])
    wells_0 = np.array(
        [128, 274, 209, 12619, 5761, 1079, 619, 87892, 7232, 1600, 27197, 2338, 17825]
    )
    sizes, sizes_0 = cases + wells, cases_0 + wells_0
    logs = np.log(cases / sizes) - np.log(cases_0 / sizes_0)
    found = heterogeneity(logs, np.sqrt(1 / cases - 1 / sizes + 1 / cases_0 - 1 / sizes_0), 0.95)
    given = [found.q, found.tau**2, found.mean]
    np.testing.assert_allclose(given, [152.233, 0.3088, -0.7141], rtol=3e-4)


def test_a_column_in_other_units_has_its_coefficient_in_these(made):
    trained, found, _ = made("dead")
    factor = torch.ones(len(trained.facts["mean"]), dtype=torch.float64)
    factor[0] = 3650.0
    facts = {n: t * factor if n in ("mean", "std") else t for n, t in trained.facts.items()}
    other = replace(trained, facts=facts).coefficients().table
    by = np.array([3650.0, *[1.0] * 5])
    for column in ("estimate", "std", "lower 95 %", "tau", "HK upper 95 %", "partition 2"):
        np.testing.assert_allclose(other[column] * by, found.table[column], rtol=1e-7)
    for column in ("p differ", "p of Q", "shift by prior", "I2"):
        np.testing.assert_allclose(other[column], found.table[column], rtol=1e-6, atol=1e-12)


def test_names_and_order_of_sites_change_nothing(made):
    _, found, _ = made("grade")
    names = dict(zip(sorted(found.factors.sites, reverse=True), "abcd", strict=True))
    sites = {names[name]: found.factors.sites[name] for name in names}
    other = tabulated(replace(found.factors, sites=sites), 0.95)
    for column in found.table:
        same = other[column if "partition" not in column else
                     " ".join(names.get(f"partition {w}", w) for w in
                              column.replace("partition ", "").split())]  # fmt: skip
        if found.table[column].dtype.kind == "f":
            np.testing.assert_allclose(same, found.table[column], rtol=1e-6, atol=1e-9)
        else:
            assert list(same) == list(found.table[column])


WRONG = {
    "covariance": {"covariance": "kronecker"},
    "method": {"method": "FedProx", "mu": 0.1},
    "kl_weight": {"kl_weight": 0.1},
    "class_weights": {"class_weights": "balanced"},
}


@pytest.mark.parametrize("name", WRONG)
def test_runs_whose_deviations_would_be_wrong_are_refused(name, made):
    trained, _, _ = made("dead")
    wrong = trained.settings.model_copy(update=WRONG[name])
    with pytest.raises(SettingError) as caught:
        replace(trained, settings=wrong).coefficients()
    assert caught.value.setting == name
    assert "wrong" in caught.value.allowed or "not those of the rows" in caught.value.allowed


def test_filled_cells_are_refused_without_a_word_for_them(made):
    trained, _, _ = made("dead")
    filled = replace(trained, signature=replace(trained.signature, missing="mean"))
    with pytest.raises(SettingError) as caught:
        filled.coefficients()
    assert caught.value.setting == "missing"
    assert any(
        note.startswith("Cells are filled in") for note in filled.coefficients(anyway=True).notes
    )


def test_rounds_that_have_not_settled_are_refused_with_how_to_go_on(made, tmp_path):
    trained, settled, _ = made("dead")
    words = trained.settings.model_copy(update={"rounds": 2, "holdout": 0.1})
    run_inline(words, tmp_path / "run")
    early = fedbary.load(tmp_path / "run")
    with pytest.raises(SettingError, match=f"fedbary resume {tmp_path}/run rounds=5") as caught:
        early.coefficients()
    assert "standard deviations (" in caught.value.value
    notes = early.coefficients(anyway=True).notes
    assert any(note.startswith("Rounds have not settled") for note in notes)
    assert "are used (81 %)" in notes[0] and "are used (90 %)" in settled.notes[0]
    none = replace(trained.data, trained=torch.zeros_like(trained.data.trained))
    of_sites = replace(trained, data=none).coefficients()  # their own tables, not the server's
    assert not any(note.startswith("Rows") for note in of_sites.notes)


def test_a_run_that_has_forgotten_a_site_has_the_estimates_without_it(made, tmp_path):
    trained, found, _ = made("dead")
    site = next(s for s in found.factors.sites if found.table[f"without {s}"].notna().all())
    forget(trained.folder, site, tmp_path / "left")
    left = fedbary.load(tmp_path / "left")
    with pytest.raises(SettingError, match="no round since"):
        left.coefficients()
    table = left.coefficients(anyway=True).table
    without, std = found.table[f"without {site}"], found.table["std"]
    assert ((table["estimate"] - without) / std).abs().max() < 1e-4
    assert site not in table
    other = next(name for name in left.coefficients(anyway=True).factors.sites)
    np.testing.assert_allclose(table[other], found.table[other], rtol=1e-3)


def test_separation_is_told(tmp_path):
    draw = np.random.default_rng(3)
    x = draw.normal(size=(400, 2))
    y = np.where(x[:, 0] > 0, "b", "a")
    pd.DataFrame({"x": x[:, 0], "z": x[:, 1], "y": y}).to_csv(tmp_path / "t.csv", index=False)
    words = {"dataset": str(tmp_path / "t.csv"), "target": "y", "clients": 2, **SITES}
    run_inline(chosen("tables", **{**words, "partition": "iid", "rounds": 20}), tmp_path / "run")
    found = fedbary.load(tmp_path / "run").coefficients()
    assert found.table["flag"][0] == "held by the prior"
    assert any(note.startswith("Held by the prior") for note in found.notes)


def test_columns_that_are_combinations_are_named(made, tmp_path):
    whole = patients(300).drop(columns=["dead", "grade"])
    whole.assign(weight=2 * whole["bmi"] - 0.1 * whole["born"]).to_csv(
        tmp_path / "t.csv", index=False
    )
    words = {"dataset": str(tmp_path / "t.csv"), "target": "days", "clients": 2, "holdout": 0.0}
    run_inline(chosen("tables", **{**words, **RUNS["days"]}), tmp_path / "run")
    with pytest.raises(SettingError) as caught:
        fedbary.load(tmp_path / "run").coefficients()
    assert caught.value.value == "born, bmi, weight"


def test_the_command_writes_what_it_prints(made, tmp_path, capsys):
    trained, found, _ = made("dead")
    coefficients(trained.folder, site="partition 1", without_each=True, output=tmp_path / "out")
    said = capsys.readouterr().out
    assert found.summary("partition 1", without_each=True) in said
    table = rows(tmp_path / "out" / "coefficients.csv")
    assert [row["term"] for row in table] == list(found.table["term"])
    np.testing.assert_allclose(
        [float(row["estimate"]) for row in table], found.table["estimate"], rtol=1e-5
    )
    assert (tmp_path / "out" / "forest.png").stat().st_size > 1000
    for wrong, words in (("output", {}), ("site", {"site": "north", "force": True})):
        with pytest.raises(SettingError) as caught:
            coefficients(trained.folder, output=tmp_path / "out", **words)
        assert caught.value.setting == wrong
