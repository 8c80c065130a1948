"""Equal numbers of settings a side: a part of docs/results/when-it-pays.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.report.cells import ACCURACY
from fedbary.report.markup import markdown_table
from findings._pairs import of_pair, tests_table
from findings.arms.page import AT_T, BOUND, ECE, TEMPERATURE
from findings.budgets.measure import SIDES, best, tried

BUDGETS = (16, 32, 64)


def read(results: Path) -> pd.DataFrame:
    """Return the rows of the fresh seeds, by method or rule."""
    table = pd.read_csv(results / "scores.csv.xz")
    return table.assign(side=table["side"].map(lambda key: name_of(json.loads(key))))


def name_of(own: dict[str, Any]) -> str:
    """Return the method or rule of a setting."""
    return str(own.get("method", own.get("rule")))


def tables(results: Path) -> str:
    """Return what each side found, the fresh seeds' scores, and the tests."""
    choice, rows = pd.read_csv(results / "choice.csv.xz"), read(results)
    return "\n\n".join([_found(choice), _scores(rows), _tests(rows)])


def _found(choice: pd.DataFrame) -> str:
    nll, body = choice.groupby("side")["nll"].mean(), []
    for side in SIDES:
        settings = tried(side)
        for name in dict.fromkeys(map(name_of, settings)):
            least = []
            for number in BUDGETS:
                own = [json.dumps(one) for one in settings[:number] if name_of(one) == name]
                least.append(f"{nll[own].min():.4f} ({len(own)})")
            found = ", ".join(f"`{key}={value}`" for key, value in best(choice, name).items())
            body.append([name, *least, found])
    head = ["side", *(f"of the first {number} (its own)" for number in BUDGETS), "the best setting"]
    return markdown_table(head, body)


def _scores(rows: pd.DataFrame) -> str:
    body = [
        [str(side), *(m.show(own[m.column]) for m in (AT_T, ACCURACY, ECE, TEMPERATURE))]
        for side, own in rows.groupby("side", sort=False)
    ]
    head = ["fresh seeds", AT_T.label, ACCURACY.label, ECE.label, TEMPERATURE.label]
    return markdown_table(head, body)


def _tests(rows: pd.DataFrame) -> str:
    pairs = (("RKLB", "FedAvg"), ("RKLB", "SCAFFOLD"), ("FedAvg", "SCAFFOLD"))
    named = {f"{one} − {other}": of_pair(rows, (one, other), AT_T) for one, other in pairs}
    return tests_table("best of each", AT_T, named, BOUND)
