"""A federation's coefficients and standard errors are those of the pooled rows, by statsmodels."""

import logging
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch
from runs_of import INLINE, lines
from safetensors.torch import load_file

import fedbary
from fedbary import client_app
from fedbary.data.deal import client_rows
from fedbary.data.terms import spline
from fedbary.errors import SettingError
from fedbary.runs.resume import lengthen
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import parse_overrides, resolve
from fedbary.tasks import task_of
from fedbary.tasks.glm import copies
from fedbary.trained.forgetting import forget

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
    held = fedbary.load(folder / "run").coefficients().factors
    shape, terms = held.contrasts.offset.shape, held.contrasts.terms
    return held.estimates.reshape(shape), held.stds.reshape(shape), terms, settings


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
@pytest.mark.parametrize("method", ["PVI", "Newton"])
def test_the_table_is_that_of_the_pooled_rows(tmp_path, family, intercepts, method):
    table = patients()
    target = {"binomial": "died", "poisson": "visits", "multinomial": "kind", "gaussian": "cost"}
    words = {"family": family, "target": target[family], "terms": TERMS, "intercepts": intercepts}
    words["method"] = method
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
        table = fedbary.load(tmp_path / "run").coefficients().table
        ends = table[["lower 95 %", "upper 95 %"]].to_numpy()
        assert np.abs((ends - fit.conf_int().loc[names]) / std[:, None]).to_numpy().max() < 1e-6
    else:
        law = sm.families.Binomial() if family == "binomial" else sm.families.Poisson()
        offset = np.log(table.years) if family == "poisson" else None
        y = (y == "yes").astype(float) if family == "binomial" else y
        fit = sm.GLM(y, x, family=law, offset=offset).fit(tol=1e-12)
        oracle, std = fit.params[names].to_numpy(), fit.bse[names].to_numpy()
    near(found, oracle, std, 1e-6 if family == "gaussian" else 1e-5)
    assert len(lines(tmp_path / "run")) <= 8


@pytest.mark.parametrize("prior_std", [10.0, 1000.0])
def test_seven_classes_are_those_of_statsmodels_but_for_the_shift_by_the_prior(tmp_path, prior_std):
    held = sm.datasets.anes96.load_pandas()
    table, x = held.exog.assign(y=held.endog.astype(int)), held.exog.assign(intercept=1.0)
    words = {"family": "multinomial", "target": "y", "intercepts": "common"}
    estimates, stds, *_ = fitted(tmp_path, table, prior_std=prior_std, **words)
    shift = fedbary.load(tmp_path / "run").coefficients().factors.prior_shifts
    fit = sm.MNLogit(table.y, x).fit(method="newton", maxiter=100, tol=1e-12, disp=0)
    oracle, std = fit.params.to_numpy().T, fit.bse.to_numpy().T
    error = (estimates - oracle) / std
    assert np.abs(error - shift.reshape(error.shape)).max() < (1e-4 if prior_std == 10 else 1e-5)
    if prior_std == 1000:
        near((estimates, stds), oracle, std, 1e-5)


def test_a_spline_has_its_knots_at_quantiles_of_all_rows(tmp_path):
    table = patients()
    words = {"target": "died", "terms": "spline(age,4) sex", "intercepts": "common", **FLAT}
    *found, terms, settings = fitted(tmp_path, table, **words)
    facts = load_file(tmp_path / "run" / "standardiser.safetensors")
    for knot, at in zip(facts["knots"].tolist(), (0.05, 0.275, 0.5, 0.725, 0.95), strict=True):
        assert abs((table.age <= knot).mean() - at) < 2 / len(table)
    x = spline(torch.tensor(table.age.to_numpy()), facts["knots"]).numpy()
    x = np.column_stack([x, table.sex == "female", np.ones(len(table))]).astype(float)
    fit = sm.GLM(table.died == "yes", x, family=sm.families.Binomial()).fit(tol=1e-12)
    near(found, fit.params.to_numpy(), fit.bse.to_numpy(), 1e-4)
    assert terms == (*(f"spline(age,4)[{k}]" for k in (1, 2, 3, 4)), "sex=female", "intercept")


def test_rows_with_an_empty_cell_are_left_out_and_only_for_columns_that_are_used(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    table = patients(300)
    holes = table.mask(np.random.default_rng(1).random(table.shape) < 0.1)
    whole = holes[holes[["age", "sex", "died"]].notna().all(axis=1)]
    words = {"target": "died", "terms": "age sex", "partition": "iid", "intercepts": "common"}
    found = []
    for name, rows in (("holes", holes), ("whole", whole)):
        (tmp_path / name).mkdir()
        found.append(fitted(tmp_path / name, rows.assign(year=1), **words))
        gone = f"{len(holes) - len(whole)} of 300 rows left out, with an empty cell"
        assert (gone in caplog.text) == (name == "holes")
        caplog.clear()
    assert np.array_equal(found[0][0], found[1][0]) and np.array_equal(found[0][1], found[1][1])


def test_estimates_do_not_depend_on_references_nor_on_units(tmp_path):
    table, found = patients(300), []
    changes = ({}, {"reference": "stage=III sex=female"})
    for k, (change, scale) in enumerate(zip(changes, (1, 1000), strict=True)):
        (tmp_path / str(k)).mkdir()
        rows = table.assign(age=table.age * scale)
        words = {"target": "died", "terms": "age stage sex", "intercepts": "common", **change}
        found.append(fitted(tmp_path / str(k), rows, **words))
    (one, std, terms, _), (other, others, named, _) = found
    assert terms == ("age", "stage=I", "stage=III", "sex=female", "intercept")
    assert named == ("age", "stage=I", "stage=II", "sex=male", "intercept")
    assert other[0, [0, 2, 3]] == pytest.approx(one[0, [0, 2, 3]] * [1e-3, -1, -1], rel=1e-4)
    assert others[0, [0, 2, 3]] == pytest.approx(std[0, [0, 2, 3]] * [1e-3, 1, 1], rel=1e-4)
    assert other[0, 1] == pytest.approx(one[0, 1] - one[0, 2], rel=1e-4)


@pytest.mark.parametrize(
    ("words", "setting", "said"),
    [
        ({"terms": "age saex"}, "terms", "perhaps sex"),
        ({"terms": "age sex^2"}, "terms", "sex holds female, male"),
        ({"terms": "age + sex"}, "terms", "+ at character 5"),
        ({"terms": "age:"}, "terms", "ends without a term"),
        ({"terms": "age log(debt)"}, "log(debt)", "numbers above 0"),
        ({"terms": "age twice sex"}, "terms", "twice, a linear combination of age"),
        ({"terms": "age sex girl"}, "terms", "girl, a linear combination of sex=female"),
        ({"terms": "age same"}, "terms", "same, the same in all rows"),
        ({"terms": "age spline(floor,4)"}, "terms", "whose knots coincide"),
        ({"terms": "age", "reference": "sex=man"}, "reference", "a column of levels"),
        ({"terms": "sex", "reference": "sex=man"}, "reference", "a level of sex: female, male"),
        ({"target": "kind"}, "target", "two for family=binomial; family=multinomial takes more"),
        ({"family": "poisson", "target": "debt"}, "target of", "counts for family=poisson"),
        ({"exposure": "years"}, "exposure", "none for family=binomial"),
        ({"family": "poisson", "target": "visits", "exposure": "debt"}, "exposure of", "above 0"),
        ({"missing": "mean"}, "missing", "drop, complete, refuse"),
        ({"method": "LDA"}, "method", "PVI for task=glm, whose sites hold all covariances; or New"),
        ({"method": "Newton", "participation": 0.5}, "participation", "1 for method=Newton"),
        ({"method": "Newton", "task": "tables"}, "method", "another for task=tables"),
        ({"covariance": "kronecker"}, "covariance", "full for task=glm"),
        ({"holdout": 0.1}, "holdout", "0 for task=glm"),
    ],
)
def test_what_has_no_table_is_refused_by_name(tmp_path, words, setting, said):
    table = patients(200).assign(same=3.0)
    table["twice"], table["girl"] = 2 * table.age + 1, (table.sex == "female").astype(int)
    table["debt"], table["floor"] = table.dose - 1, (np.arange(200) % 20 == 0).astype(int)
    with pytest.raises(SettingError) as caught:
        settings = settings_of(tmp_path, table, **{"target": "died", "terms": "age sex", **words})
        run_inline(settings, tmp_path / "run")
    message = str(caught.value)
    assert caught.value.setting.startswith(setting) and said in message and "\n" not in message


def test_few_events_are_refused_and_predictions_want_a_common_intercept(tmp_path):
    table = patients(200)
    rare = table.assign(died=np.where(np.arange(200) < 12, "yes", "no"))
    with pytest.raises(SettingError, match="3 columns and 12 rows of the rarest class.*most 2 col"):
        run_inline(settings_of(tmp_path, rare, target="died", terms="age stage"), tmp_path / "few")
    fitted(tmp_path, table, target="died", terms="age")
    with pytest.raises(SettingError, match="^intercepts: 'site'; expected common"):
        fedbary.load(tmp_path / "run").predict(table)


@pytest.mark.parametrize("method", ["PVI", "Newton"])
def test_what_the_prior_holds_has_a_flag(tmp_path, method):
    """Age tells all deaths apart in one of two tables."""
    table = patients(400)
    split = table.assign(died=np.where(table.age > 60, "yes", "no"))
    for name, rows in (("all", split), ("none", table)):
        (tmp_path / name).mkdir()
        fitted(tmp_path / name, rows, target="died", terms="age sex", method=method)
        found = fedbary.load(tmp_path / name / "run").coefficients(anyway=True).table
        flagged = found.loc[found["flag"] == "held by the prior", "term"]
        assert ("age" in set(flagged)) == (name == "all")


def test_predictions_are_those_of_the_pooled_fit(tmp_path):
    table = patients()
    words = {"terms": "age sex", "intercepts": "common", **FLAT}
    for family, target, more in (
        ("binomial", "died", {}),
        ("poisson", "visits", {"exposure": "years"}),
        ("gaussian", "cost", {}),
    ):
        (tmp_path / family).mkdir()
        held = {"family": family, "target": target, **more, **words}
        fitted(tmp_path / family, table, **held)
        found = fedbary.load(tmp_path / family / "run").predict(table.drop(columns=target))
        x = sm.add_constant(dummies(table, "age", "sex"))
        law = getattr(sm.families, family.capitalize())()
        y = (table.died == "yes").astype(float) if family == "binomial" else table[target]
        exposure = table.years if more else None
        oracle = sm.GLM(y, x, family=law, exposure=exposure).fit(tol=1e-12).fittedvalues.to_numpy()
        said = found.probs[:, 1] if family == "binomial" else found.mean
        assert said.numpy() == pytest.approx(oracle, rel=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_few_values_are_no_copies_and_copies_are(seed):
    rng = np.random.default_rng(seed)
    few = rng.integers(0, [2, 3, 5, 2], (400, 4))
    numbers = np.concatenate([few, rng.normal(size=(400, 1)).round(1)], 1)
    for rows in (few, numbers):
        assert copies(torch.tensor(rows)) == 0
    twice = numbers[np.r_[:400, rng.choice(400, 200)]]
    assert copies(torch.tensor(twice)) >= 200


def test_copies_of_rows_are_said_where_the_intervals_stand(tmp_path):
    words = {"target": "died", "terms": "age sex stage", "reference": "sex=male"}
    few = patients(300).assign(age=lambda rows: (rows.age / 20).round())  # equal by chance
    for name, table in {"sound": few, "copied": pd.concat([patients(100)] * 4)}.items():
        (tmp_path / name).mkdir()
        held = table[["age", "sex", "stage", "died"]].sample(frac=1, random_state=0)
        run_inline(settings_of(tmp_path / name, held, **words), tmp_path / name / "run")
        notes = fedbary.load(tmp_path / name / "run").coefficients().notes
        cautions = lines(tmp_path / name / "run")[0].get("cautions", [])
        assert any("equal another" in note for note in notes) == (name == "copied")
        assert any("equal another" in line for line in cautions) == (name == "copied")


def test_hospitals_with_own_files_have_the_fit_of_their_rows_and_the_server_has_none(tmp_path):
    """The server's table names a level that no hospital has; one has empty cells, one a class."""
    server = patients(60, seed=9).assign(stage=["IV"] * 3 + ["I", "II", "III"] * 19)
    hospitals = {name: patients(250, seed=k) for k, name in enumerate(("north", "south", "east"))}
    hospitals["south"].loc[::7, "age"] = np.nan
    hospitals["east"] = hospitals["east"].query("died == 'no'").iloc[:, ::-1]
    nodes = []
    for name, rows in hospitals.items():
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        held = {"data-path": f"{tmp_path}/{name}.csv", "state-path": f"{tmp_path}/of {name}"}
        nodes.append({"name": name, **held})
    words = {"target": "died", "terms": "sex stage age", "clients": 3, **FLAT}
    settings = settings_of(tmp_path, server, **words)
    run(InlineGrid(client_app.app, nodes, settings.model_dump()), settings, tmp_path / "run")
    first = lines(tmp_path / "run")[0]
    assert "no row that counts has stage=IV: no coefficient" in first["cautions"]
    found = fedbary.load(tmp_path / "run").coefficients()
    held, picture = found.factors, found.picture()
    assert all("inf" not in label.get_text() for label in picture.axes[0].get_yticklabels())
    table = pd.concat([rows.assign(at=name) for name, rows in hospitals.items()]).dropna()
    x = dummies(table, "sex", "stage", "age")
    assert held.contrasts.terms == tuple(x)
    x = np.column_stack([x, pd.get_dummies(table["at"]).drop(columns="east")]).astype(float)
    kept = (table["at"] != "east").to_numpy()  # one class alone tells nothing of the slopes
    y = (table.died == "yes").to_numpy()
    fit = sm.GLM(y[kept], x[kept], family=sm.families.Binomial()).fit(tol=1e-12)
    assert np.abs((held.estimates - fit.params[:4]) / fit.bse[:4]).max() < 1e-3
    assert np.abs(held.stds / fit.bse[:4] - 1).max() < 1e-3


@pytest.mark.parametrize(("family", "target"), [("binomial", "died"), ("poisson", "visits")])
def test_a_site_that_withdraws_leaves_the_fit_of_the_others(family, target, tmp_path):
    """Without it in the table to 0.1 standard errors; forgotten, to 1e-3 in a round, 1e-6 in 3."""
    table, law = patients(seed=1), getattr(sm.families, family.capitalize())()
    words = {"family": family, "target": target, "terms": "age sex stage", "intercepts": "common"}
    words |= {"reference": "sex=male stage=II", "partition": "quantity", "alpha": 1.0, "seed": 1}
    *_, terms, settings = fitted(tmp_path, table, **words, **FLAT)
    found, fits = fedbary.load(tmp_path / "run").coefficients().table, []
    for place in range(4):
        rows = table[sites_of(settings) != place]
        y = (rows.died == "yes").astype(float) if family == "binomial" else rows.visits
        x = dummies(rows, "age", "sex", "stage", intercept=1.0)
        assert tuple(x) == terms
        fits.append(sm.GLM(y, x, family=law).fit(tol=1e-14))
        without = found[f"without partition {place}"]
        assert not (np.abs(without - [*fits[-1].params]) > 0.1 * np.array(fits[-1].bse)).any()
    assert found["without partition 1"].notna().all()
    left, fit = tmp_path / "left", fits[1]
    forget(tmp_path / "run", "partition 1", left)
    for rounds, most in ((2, 1e-3), (4, 1e-6)):
        more = settings.model_copy(update={"rounds": rounds, "resume": "last"})
        lengthen(left, more)
        run_inline(more, left)
        held = fedbary.load(left).coefficients(anyway=True).factors
        assert np.abs((held.estimates - fit.params) / fit.bse).max() < most


def test_the_page_s_commands_are_runs(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "howto" / "glm.md").read_text(encoding="utf-8")
    text = text.replace("\\\n", " ")
    commands = re.findall(r"^fedbary (simulate|coefficients) (.*)$", text, re.MULTILINE)
    assert len(commands) == 8
    patients(300).assign(patient=range(300)).to_csv(tmp_path / "patients.csv", index=False)
    monkeypatch.chdir(tmp_path)
    for command, words in commands:
        if command == "coefficients":
            assert "age:sex=female" in fedbary.load(words).coefficients().summary()
        else:
            given = parse_overrides(shlex.split(words))
            run_inline(resolve({**INLINE, **given}), tmp_path / given["output"])
