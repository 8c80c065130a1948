"""A report shows the scores of its runs' tasks over their splits, a part a task."""

import re

import pandas as pd
import pytest

from fedbary.report.report import write_report
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.study.table import read_run, read_table, write_table

QUICK = {"engine": "inline", "pictures": False, "rounds": 1, "local_epochs": 1, "samples": 2}
TABLES = {**QUICK, "task": "tables"}
REGRESSION = {**QUICK, "task": "regression", "clients": 3}


def swept(folder, runs):
    """A results folder with the runs of these settings."""
    tables = []
    for number, settings in enumerate(runs):
        run_inline(resolve(settings), folder / str(number))
        tables.append(read_run(str(number), folder / str(number)))
    write_table(folder, tables)
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Two rules and FedAvg on two splits of a table, and their report."""
    runs = [
        {**TABLES, "rule": rule, "bayesian_layers": n, "split": split}
        for rule, n in (("FedAvg", 0), ("RKLB", 2), ("WB", 2))
        for split in (0, 1)
    ]
    folder = swept(tmp_path_factory.mktemp("tables"), runs)
    write_report(folder)
    return folder


def cells(markdown, *first):
    rows = [[cell.strip("* ") for cell in line.split("|")[1:-1]] for line in markdown.split("\n")]
    return next(row for row in rows if row[: len(first)] == list(first))


def test_a_report_on_tables_has_their_scores_over_the_splits(tables):
    markdown, table = (tables / "report.md").read_text(), read_table(tables)
    last = table[(table["round"] == 1) & (table["rule"] == "WB")]
    places = {"accuracy": 2, "nll": 3, "auroc": 2, "brier": 3, "sensitivity": 2}
    values = {c: (100 if places[c] == 2 else 1) * last[c] for c in places}
    expected = [f"{v.mean():.{places[c]}f} ± {v.std():.{places[c]}f}" for c, v in values.items()]
    assert cells(markdown, "WB") == ["WB", "2", "2", *expected]
    assert "| method | n | runs | Accuracy % | NLL | AUROC % | Brier | Sensitivity % |" in markdown
    assert "the splits (0, 1)" in markdown and "not independent" in markdown
    assert "image" not in markdown and "(figures/partition-1.png)" in markdown
    assert "Epistemic, nats" in markdown and "20 % rejected" in markdown
    assert len({*re.findall(r"^\| (\w+ − \w+) \|", markdown, re.M)}) == 3


def test_runs_of_several_tasks_have_a_part_of_the_report_each(tables, tmp_path):
    swept(tmp_path, [{**REGRESSION, "lr": lr, "split": k} for lr in (0.01, 0.003) for k in (0, 1)])
    both = pd.concat([read_table(folder) for folder in (tables, tmp_path)], ignore_index=True)
    both["run"] = both["task"] + both["run"].astype(str)
    write_table(tmp_path, [both])
    markdown = write_report(tmp_path).with_suffix(".md").read_text()
    parts = markdown.split("\n# Task: ")
    assert [part.split("\n")[0] for part in parts[1:]] == ["tables", "regression"]
    assert "AUROC" in parts[1] and "AUROC" not in parts[2]
    for lr in (0.01, 0.003):
        assert re.search(rf"^\| FedAG, lr={lr} \| \d \| 2 \| .* \| .* ± .* \|$", parts[2], re.M)
    scores = "| NLL | RMSE | CRPS | sharpness | in 50 % | in 90 % | in 95 % |"
    assert scores in parts[2] and "kB" in parts[2]
