"""Survival of a federation is that of the pooled rows, by lifelines and statsmodels."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch
from lifelines import CoxPHFitter, KaplanMeierFitter
from lifelines.datasets import load_gbsg2, load_lung, load_rossi
from lifelines.statistics import multivariate_logrank_test
from runs_of import INLINE
from test_glm import fitted, near, settings_of, sites_of

import fedbary
from fedbary import client_app
from fedbary.commands.cli import main
from fedbary.data.examples import Examples
from fedbary.errors import SettingError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import parse_overrides, resolve
from fedbary.tasks.survival import Cox, joined_cuts, log_rank, parts
from fedbary.trained.risks import risks, survival_of

FLAT = {"task": "survival", "prior_std": 1000.0, "min_examples": 5}


def rossi():
    return load_rossi().rename(columns={"arrest": "event", "week": "time"})


def gbsg2():
    table = load_gbsg2().rename(columns={"cens": "event"})
    return pd.get_dummies(table, drop_first=True, dtype=float)


def lung():
    """Rows of real institutions, of which one has none."""
    table = load_lung()[["inst", "time", "status", "age", "sex", "ph.ecog"]].dropna()
    return table.rename(columns={"status": "event"})


def of_cox(table, strata):
    """Return lifelines' estimates and standard errors, stratified."""
    held = table.assign(site=strata)
    fit = CoxPHFitter().fit(
        held, "time", "event", strata=["site"], fit_options={"precision": 1e-14}
    )
    return fit.params_.to_numpy(), fit.standard_errors_.to_numpy()


@pytest.mark.parametrize("table", [rossi, gbsg2])
def test_cox_is_that_of_the_pooled_rows_with_a_baseline_of_each_site(table, tmp_path):
    rows = table()
    *found, terms, settings = fitted(tmp_path, rows, **FLAT, target="time", family="cox")
    oracle, std = of_cox(rows, sites_of(settings))
    assert terms == tuple(rows.columns.drop(["time", "event"]))
    found = [part[0] for part in found]
    near(found, oracle, std, 1e-5)
    assert np.abs(found[0] - oracle).max() < 1e-6


def test_cox_of_eighteen_institutions_is_that_of_the_pooled_rows(tmp_path):
    """By default the smallest would not answer: their limits are open here."""
    rows, nodes = lung(), []
    strata = rows.pop("inst")
    for inst, part in rows.groupby(strata):
        part.to_csv(tmp_path / f"{inst:.0f}.csv", index=False)
        held = {"data-path": f"{tmp_path}/{inst:.0f}.csv", "name": f"inst {inst:.0f}"}
        nodes.append({**held, "min-rows": 0, "min-cell": 0, "max-columns": 1e9, "budget": 0})
    words = {**FLAT, "target": "time", "family": "cox", "clients": len(nodes)}
    settings = settings_of(tmp_path, rows, **words)
    run(InlineGrid(client_app.app, nodes, settings.model_dump()), settings, tmp_path / "run")
    held, (oracle, std) = (
        fedbary.load(tmp_path / "run").coefficients().factors,
        of_cox(rows, strata),
    )
    near((held.estimates, held.stds), oracle, std, 3e-5)
    assert len(nodes) == 18 and np.abs(held.estimates - oracle).max() < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_efron_s_likelihood_is_its_sum_over_events(seed):
    rng = np.random.default_rng(seed)
    rows = 40
    time, event = rng.integers(1, 9, rows).astype(float), rng.random(rows) < 0.6
    f = rng.normal(0, 2, rows)
    wanted = -f[event].sum()
    for t in np.unique(time[event]):
        at_risk, tied = np.exp(f[time >= t]).sum(), np.exp(f[(time == t) & event])
        wanted += sum(np.log(at_risk - k / len(tied) * tied.sum()) for k in range(len(tied)))
    y = torch.tensor(np.stack([time, event], 1))
    found = Cox()(torch.tensor(f)[:, None], y)
    assert float(found) * rows == pytest.approx(wanted, rel=1e-12)
    assert float(Cox()(torch.tensor(f + 50)[:, None], y)) == pytest.approx(float(found))


def test_a_site_without_events_tells_nothing():
    x, y = torch.randn(9, 3).double(), torch.stack([torch.rand(9), torch.zeros(9)], 1).double()
    weights = torch.randn(1, 3).double()
    assert float(Cox()(x @ weights.T, y)) == 0
    assert not Cox().hessian(x, weights, y).any()


@pytest.mark.parametrize("intercepts", ["common", "site"])
def test_hazards_by_interval_are_a_poisson_regression_of_parts_of_rows(tmp_path, intercepts):
    table = rossi()
    words = {"target": "time", "family": "hazard", "intervals": 4, "intercepts": intercepts}
    estimate, std, terms, settings = fitted(tmp_path, table, **FLAT, **words)
    facts = fedbary.load(tmp_path / "run").facts
    time, event = (torch.tensor(table[name].to_numpy()) for name in ("time", "event"))
    inside, events = (part.numpy() for part in parts(time, event, facts["cuts"]))
    row, interval = np.nonzero(inside)
    x = table.drop(columns=["time", "event"]).to_numpy(float)[row]
    bases = np.eye(4)[interval] if intercepts == "common" else np.concatenate(
        [np.eye(4)[interval][:, :3], np.eye(settings.clients)[sites_of(settings)[row]]], 1
    )  # fmt: skip
    fit = sm.GLM(
        events[row, interval], np.concatenate([x, bases], 1), family=sm.families.Poisson(),
        exposure=inside[row, interval],
    ).fit(tol=1e-12)  # fmt: skip
    width = len(terms)
    near((estimate[0], std[0]), fit.params[:width], fit.bse[:width], 1e-3)
    assert np.allclose(facts["events"], events.sum(0)) and np.allclose(
        facts["at_risk"], inside.sum(0)
    )


@pytest.mark.parametrize("table", [rossi, gbsg2, lung])
def test_hazards_are_near_cox_s_in_eight_intervals(table, tmp_path):
    rows = table().drop(columns="inst", errors="ignore")
    names = rows.columns.drop(["time", "event"])
    estimate, std, *_ = fitted(tmp_path, rows, **FLAT, target="time")
    fit, width = CoxPHFitter().fit(rows, "time", "event"), len(names)
    held, usual = fedbary.load(tmp_path / "run"), rows[names].mean().to_frame().T
    at = float(held.facts["cuts"][-1])
    survival = float(held.predict(usual).probs[0, 0])
    assert abs(survival - fit.predict_survival_function(usual, [at]).iloc[0, 0]) < 0.025
    apart = np.abs(estimate[0, :width] - fit.params_)
    assert (apart / fit.standard_errors_).max() < 0.12
    assert (apart * rows[names].std()).max() < 0.01  # 1 % of the hazard ratio of a deviation
    assert np.abs(std[0, :width] / fit.standard_errors_ - 1).max() < 0.01


@pytest.mark.parametrize("seed", range(5))
def test_parts_add_up_to_the_row(seed):
    torch.manual_seed(seed)
    time, event = torch.randint(1, 12, (30,)).double(), torch.randint(0, 2, (30,)).double()
    cuts = torch.randint(1, 12, (4,)).double().sort().values
    inside, events = parts(time, event, cuts)
    assert torch.allclose(inside.sum(1), time) and torch.equal(events.sum(1), event)
    kept = joined_cuts(cuts, events.sum(0))
    if event.any():
        assert (parts(time, event, torch.tensor(kept).double())[1].sum(0) > 0).all()


def test_a_risk_s_interval_is_the_delta_method_s_and_survival_near_kaplan_meier_s(tmp_path):
    table = rossi()
    estimate, std, terms, _ = fitted(tmp_path, table, **FLAT, target="time", intervals=4)
    held = fedbary.load(tmp_path / "run")
    first = float(held.facts["cuts"][0])
    at_zero = pd.DataFrame(np.zeros((1, 7)), columns=table.columns.drop(["time", "event"]))
    rows = Examples(held.inputs(at_zero), None)
    found = {name: float(value[0]) for name, value in risks(held, rows, [first, 40]).items()}
    assert terms[7].startswith("log hazard 0 to ")
    log_hazard, wide = estimate[0, 7] + np.log(first), 1.959964 * std[0, 7]
    for name, move in (("", 0), ("lower ", -wide), ("upper ", wide)):
        wanted = -np.expm1(-np.exp(log_hazard + move))
        assert found[f"{name}risk at {first:g}"] == pytest.approx(wanted, rel=1e-4)
    assert found["risk at 40"] > found[f"risk at {first:g}"]
    table_of_all = pd.DataFrame(survival_of(held))
    curve = table_of_all[table_of_all.group == "all"]
    oracle = KaplanMeierFitter().fit(table.time, table.event)
    apart = curve["survival"] - oracle.survival_function_at_times(curve["time"]).to_numpy()
    assert np.abs(apart).max() < 0.003
    ends = oracle.confidence_interval_.reindex(curve["time"], method="ffill").to_numpy().T
    assert np.abs(np.stack([curve["lower survival"], curve["upper survival"]]) - ends).max() < 0.01
    with pytest.raises(SettingError, match="above 0"):
        risks(held, rows, [0.0])


@pytest.mark.parametrize("seed", range(3))
def test_log_rank_sums_are_lifelines_test(seed):
    rng = np.random.default_rng(seed)
    time, event = rng.integers(1, 15, 60).astype(float), rng.random(60) < 0.7
    group = rng.integers(0, 3, 60)
    wanted = multivariate_logrank_test(time, group, event)
    apart, var = log_rank(*map(torch.tensor, (time, event.astype(float), np.eye(3)[group])))
    found = float(apart @ torch.linalg.pinv(var, hermitian=True, rtol=1e-9) @ apart)
    assert found == pytest.approx(wanted.test_statistic, rel=1e-8)
    assert float(apart.sum()) == pytest.approx(0, abs=1e-9)


def test_the_table_has_the_log_rank_test_within_sites(tmp_path):
    table = rossi().assign(race=lambda rows: np.where(rows.race == 1, "a", "b"))
    *_, settings = fitted(tmp_path, table, **FLAT, target="time", family="cox")
    site, sums = sites_of(settings), []
    for number in range(settings.clients):
        part = table[site == number]
        groups = np.stack([part.race == "a", part.race == "b"], 1).astype(float)
        held = part.time.to_numpy(), part.event.to_numpy(), groups
        sums.append(log_rank(*(torch.tensor(values.astype(float)) for values in held)))
    apart, var = (sum(each) for each in zip(*sums, strict=True))
    statistic = float(apart[0] ** 2 / var[0, 0])
    (line,) = [n for n in fedbary.load(tmp_path / "run").coefficients().notes if "Log-rank" in n]
    assert f"race: chi² = {statistic:.4g} of 1" in line


def test_the_page_s_commands_are_runs(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "howto" / "survival.md").read_text("utf-8")
    commands = re.findall(r"^fedbary (\w+) (.*)$", text, re.MULTILINE)
    assert len(commands) == 6
    table = rossi().rename(columns={"time": "days", "event": "died", "mar": "sex", "paro": "stage"})
    table.to_csv(tmp_path / "patients.csv", index=False)
    monkeypatch.chdir(tmp_path)
    for command, words in commands:
        if command == "simulate":
            given = parse_overrides(shlex.split(words))
            run_inline(resolve({**INLINE, **given}), tmp_path / given["output"])
        else:
            monkeypatch.setattr("sys.argv", ["fedbary", command, *shlex.split(words)])
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code
    assert {"upper risk at 730"} < {*pd.read_csv("predictions.csv")}
    written = {file.name for file in (tmp_path / "coefficients").iterdir()}
    assert {"survival.csv", "survival.png", "calibration.csv"} <= written
    scores = pd.read_csv(tmp_path / "evaluation" / "scores.csv")
    assert {"c_index", "predicted_risk", "observed_risk"} <= {*scores}
    assert not (tmp_path / "cox" / "survival.csv").exists()
