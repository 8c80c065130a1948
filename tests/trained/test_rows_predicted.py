"""Rows of one's own: those that go to a person, digits of numbers, groups, absent targets."""

import math
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from runs_of import rows

import fedbary
from fedbary.commands.use import evaluate, predict
from fedbary.errors import SettingError
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.trained import writing

QUICK = {"engine": "inline", "pictures": False, "clients": 2, "rounds": 1, "local_epochs": 1}


def table(rows=60):
    rng = np.random.default_rng(0)
    ward = np.where(np.arange(rows) % 3 > 0, "north", "south")
    age = rng.integers(20, 90, rows)
    died = np.where(age + rng.normal(0, 9, rows) > 55, "died", "lived")
    cost = 1.7e9 + 4000 * rng.normal(size=rows)
    return pd.DataFrame({"age": age, "ward": ward, "outcome": died, "cost": cost})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for task, target, other in (("tables", "outcome", "cost"), ("regression", "cost", "outcome")):
        table().drop(columns=other).to_csv(folder / f"{task}.csv", index=False)
        about = {"task": task, "dataset": str(folder / f"{task}.csv"), "target": target}
        run_inline(resolve({**QUICK, **about}), folder / task)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_column_without_spread_in_training_moves_no_prediction_and_is_said(here, capsys):
    held = table().drop(columns="cost").assign(dose=1500)
    held.to_csv("held.csv", index=False)
    about = {"task": "tables", "dataset": str(here / "held.csv"), "target": "outcome"}
    run_inline(resolve({**QUICK, **about, "model": "linear"}), here / "run")
    trained = fedbary.load("run")
    assert trained.task.idle(trained.facts) == (
        "columns without spread in training have no effect: dose",
    )
    held.assign(dose=[1200, 1500, 1800] * 20).to_csv("new.csv", index=False)
    same, new = (trained.read(f"{name}.csv") for name in ("held", "new"))
    assert torch.equal(trained.predict(same).probs, trained.predict(new).probs)
    with pytest.warns(UserWarning, match=r"no effect: dose \(40 rows hold another value\)"):
        trained.predict(held.assign(dose=[1200, 1500, 1800] * 20))
    capsys.readouterr()
    predict(here / "run", Path("new.csv"))
    said = "columns without spread in training have no effect: dose (40 rows hold another value)"
    assert said in capsys.readouterr().err
    predict(here / "run", Path("held.csv"), force=True)
    assert "another value" not in capsys.readouterr().err


@pytest.mark.parametrize("task", ["tables", "regression"])
def test_a_row_with_an_unknown_level_goes_to_a_person_and_the_others_are_predicted(
    task, runs, here, capsys
):
    held = table(9).drop(columns=["outcome", "cost"])
    held.to_csv("known.csv", index=False)
    predict(runs / task, Path("known.csv"), output=Path("all.csv"))
    assert "to a person" not in rows("all.csv")[0]
    held.loc[[1, 7], "ward"] = "Geriatrics"
    held.to_csv("new.csv", index=False)
    predict(runs / task, Path("new.csv"))
    said = "new.csv: 2 of 9 rows (first: 2) hold a level that the model does not know"
    assert said in capsys.readouterr().err
    for place, (row, known) in enumerate(zip(rows(), rows("all.csv"), strict=True)):
        assert row.pop("to a person") == str(place in (1, 7))
        if place in (1, 7):
            assert row.pop("example") == str(place + 1) and set(row.values()) == {""}
        else:
            assert row == known
    if task == "tables":
        held["outcome"] = "died"
        held.to_csv("new.csv", index=False)
        predict(runs / task, Path("new.csv"), error_rate=0.3, force=True)
        assert rows()[1]["to a person"] == "True"
        evaluate(runs / task, Path("new.csv"))
        assert rows("evaluation/scores.csv")[0]["examples"] == "7"
        held.assign(ward="x").to_csv("none.csv", index=False)
        with pytest.raises(SettingError, match="a row whose levels the model knows"):
            evaluate(runs / task, Path("none.csv"), output=Path("e"))


@pytest.mark.parametrize("task", ["tables", "regression"])
def test_a_target_that_is_empty_in_every_row_is_none(task, runs, here):
    held = table(5).assign(outcome="", cost=np.nan)
    held.to_csv("new.csv", index=False)
    predict(runs / task, Path("new.csv"))
    assert len(rows()) == 5
    assert fedbary.load(runs / task).read("new.csv").y is None


def test_numbers_far_from_0_keep_the_digits_that_their_spread_needs(runs, here):
    table(9).drop(columns=["outcome", "cost"]).to_csv("new.csv", index=False)
    predict(runs / "regression", Path("new.csv"))
    for row in rows():
        mean, std = float(row["mean"]), float(row["std"])
        low, high = float(row["lower 90 %"]), float(row["upper 90 %"])
        assert low < mean < high and high - low == pytest.approx(2 * 1.64485 * std, rel=1e-4)


@given(st.floats(-1e12, 1e12, allow_nan=False), st.floats(1e-3, 1e6))
def test_a_number_is_written_to_a_hundred_thousandth_of_its_standard_deviation(value, std):
    error = abs(float(writing._written(value, std)) - value)
    assert error <= max(1e-5 * std, 1e-15 * abs(value))
    assert len(writing._written(value, std).lstrip("-")) <= 22


def test_groups_that_differ_in_case_or_blanks_are_said(runs, here, capsys):
    held = table(40)
    held["site"] = ["Nord", "nord", "Süd", "No rd"] * 10
    held.drop(columns="cost").to_csv("new.csv", index=False)
    evaluate(runs / "tables", Path("new.csv"), by="site")
    said = capsys.readouterr().err
    assert "'site=No rd' and 'site=Nord' differ only in case or blanks" in said
    assert "'site=No rd' and 'site=nord' differ" in said and "Süd" not in said


def test_a_data_frame_is_predicted_by_the_names_of_its_columns(runs):
    trained, held = fedbary.load(runs / "tables"), table(9)
    held.drop(columns=["cost", "outcome"]).to_csv(runs / "new.csv", index=False)
    from_file = trained.predict(trained.read(runs / "new.csv")).probs
    assert torch.equal(trained.predict(held[held.columns[::-1]]).probs, from_file)
    assert torch.equal(trained.predict(trained.inputs(held)).probs, from_file)


@pytest.mark.parametrize(
    ("x", "named"),
    [
        (torch.zeros(4, 1), "x: 'a tensor (4, 1)'; expected a tensor (N, 3) of age, ward=north"),
        (torch.zeros(4, 4), "x: 'a tensor (4, 4)'"),
        (torch.tensor([[50.0, 1, 0], [math.nan, 1, 0]]), "x: row 2: age: nan; expected a finite"),
        (torch.tensor([[50.0, 1, 1]]), "x: row 1: ward: [1.0, 1.0]; expected a 1 among 0s for n"),
        (np.zeros((4, 3)), "x: 'a ndarray'; expected a tensor (N, 3), or a DataFrame with the c"),
        ([[50.0, 1, 0]], "x: 'a list'"),
        (table(4).drop(columns="age"), "missing: age"),
        (table(4).assign(age=[30, 40, None, 50]), "x: row 3, feature 'age'"),
        (table(4).assign(ward="moon"), "x: row 1, feature 'ward': 'moon'; expected north, south"),
    ],
)
def test_rows_in_python_are_checked_as_those_of_a_file_are(x, named, runs):
    trained = fedbary.load(runs / "tables")
    for use in (trained.predict, trained.scored_by_sites):
        with pytest.raises(SettingError) as caught:
            use(x)
        assert named in str(caught.value)


def test_classes_that_an_evaluation_leaves_out_of_a_mean_are_named_by_group(here, capsys):
    """One group's mean AUROC is over other classes than the next one's, so they do not compare."""
    rng = np.random.default_rng(0)
    held = pd.DataFrame({"x": rng.normal(size=90), "out": list("abc") * 30, "sex": ["f", "m"] * 45})
    held.drop(columns="sex").to_csv("held.csv", index=False)
    about = {
        "task": "tables",
        "dataset": str(here / "held.csv"),
        "target": "out",
        "model": "linear",
    }
    run_inline(resolve({**QUICK, **about}), here / "run")
    held[(held["out"] != "c") | (held["sex"] == "m")].to_csv("new.csv", index=False)
    capsys.readouterr()
    evaluate(here / "run", Path("new.csv"), by="sex")
    said = [line for line in capsys.readouterr().err.splitlines() if "mean AUROC" in line]
    gone = "The mean AUROC is over 2 of 3 classes: all or none of the examples are c"
    assert said == [f"sex=f: {gone}"]
