"""Equal numbers of settings a side: a part of docs/results/when-it-pays.md."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from fedbary.report.cells import ACCURACY
from fedbary.report.markup import markdown_table
from findings._pairs import of_pair, tests_table
from findings.arms.page import AT_T, BOUND, ECE, TEMPERATURE
from findings.budgets.measure import SIDES, best, tried

BUDGETS = (8, 16, 32)


def read(results: Path) -> pd.DataFrame:
    """Return the rows of the fresh seeds, by side."""
    table = pd.read_csv(results / "scores.csv.xz")
    of = {json.dumps(own): side for side in SIDES for own in tried(side)}
    return table.assign(key=table["side"], side=table["side"].map(of))


def tables(results: Path) -> str:
    """Return what each side found, the fresh seeds' scores, and the test."""
    choice, rows = pd.read_csv(results / "choice.csv.xz"), read(results)
    return "\n\n".join([_found(choice), _scores(rows), _tests(rows)])


def _found(choice: pd.DataFrame) -> str:
    nll, body = choice.groupby("side")["nll"].mean(), []
    for side in SIDES:
        keys = [json.dumps(own) for own in tried(side)]
        least = [f"{nll[keys[:number]].min():.4f}" for number in BUDGETS]
        first = json.loads(best(choice, side)[0])
        own = ", ".join(f"`{name}={value}`" for name, value in first.items())
        body.append([side, *least, own])
    head = ["side", *(f"best of {number}" for number in BUDGETS), "the best setting"]
    return markdown_table(head, body)


def _scores(rows: pd.DataFrame) -> str:
    body = [
        [str(side), *(m.show(own[m.column]) for m in (AT_T, ACCURACY, ECE, TEMPERATURE))]
        for side, own in rows.groupby("side", sort=False)
    ]
    head = ["fresh seeds", AT_T.label, ACCURACY.label, ECE.label, TEMPERATURE.label]
    return markdown_table(head, body)


def _tests(rows: pd.DataFrame) -> str:
    named = {"posterior − point": of_pair(rows, ("posterior", "point"), AT_T)}
    return tests_table("best of each", AT_T, named, BOUND)
