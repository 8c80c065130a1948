"""A run is called by what the server does."""

from pathlib import Path

import pandas as pd
import pytest

from fedbary.methods import METHODS
from fedbary.report.sections.regression import scores_by_method
from fedbary.runs.location import run_folder
from fedbary.settings.config import resolve
from fedbary.study.table import read_table, with_methods

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"barycentre"}))
def test_a_run_s_folder_has_the_name_of_its_method(method, tmp_path):
    of_numbers = METHODS[method].needs_numbers
    words = {"method": method, "task": "regression" if of_numbers else "classification"}
    words |= {"noise": "learned"} if of_numbers else {}
    name = run_folder(resolve(words), tmp_path).name
    assert f"-{method}-" in name and "RKLB" not in name


def test_a_barycentre_is_called_by_its_rule(tmp_path):
    assert "-WB-n3-" in run_folder(resolve({"rule": "WB"}), tmp_path).name
    runs = pd.DataFrame({"method": ["PVI", "barycentre"], "rule": ["RKLB", "WB"]})
    assert list(with_methods(runs)["rule"]) == ["PVI", "WB"]


def test_regressions_are_told_apart_by_method_and_parameter():
    table = read_table(ROOT / "findings" / "regression" / "vi")
    first = table[table["round"] == table["rounds"]].iloc[[0]]
    runs = [first]
    for damping in (0.1, 0.05):
        made = first.assign(method="PVI")
        made.insert(list(made).index("commit"), "damping", damping)
        runs.append(made)
    last = with_methods(pd.concat(runs, ignore_index=True))
    columns = list(last)
    columns.insert(columns.index("commit"), columns.pop(columns.index("damping")))
    last = last[columns]
    scores = scores_by_method(last, ROOT)
    assert list(zip(scores["method"], scores["settings"], strict=True)) == [
        ("RKLB", ""), ("PVI", "damping=0.1"), ("PVI", "damping=0.05"),
    ]  # fmt: skip


def test_runs_of_one_second_have_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.setattr("fedbary.runs.location.time.strftime", lambda form: "now")
    made = []
    for _ in range(3):
        made.append(run_folder(resolve({}), tmp_path))
        made[-1].mkdir(parents=True)
    assert [folder.name.removeprefix(made[0].name) for folder in made] == ["", "-2", "-3"]
