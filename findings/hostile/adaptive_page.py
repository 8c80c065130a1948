"""What an attacker who knows clipping and mixing costs RKLB: tables of docs/results/hostile.md.

They are of the results of `findings/hostile/adaptive/grid.yaml`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from fedbary.report.cells import ACCURACY
from fedbary.report.differences import p_value
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows
from findings._pairs import by_seed, of_pair

BESIDE = "nobody attacks, no mixing"
SIDES = {"attacked, the server reckons with three": 0.3, "with two": 0.2}
"""What of the clients the server takes for hostile, by the row's name; three of ten are."""

POINTS = replace(ACCURACY, decimals=1)


def read(results: Path) -> pd.DataFrame:
    """Return every run's result with its `side`."""
    rows = result_rows(read_table(results))
    side = pd.Series(BESIDE, index=rows.index)
    for name, fraction in SIDES.items():
        side[(rows["attack"] != "none") & (rows["trim_fraction"] == fraction)] = name
    return rows.assign(side=side)


def tables(results: Path) -> str:
    """Return accuracies, and the points lost with their intervals, over the seeds."""
    rows, body = read(results), []
    for name in (BESIDE, *SIDES):
        side = rows[rows["side"] == name]
        scores = by_seed(side, POINTS)
        cells = [name, str(len(side)), POINTS.show(side["accuracy"]), f"{scores.min():.1f}"]
        if name == BESIDE:
            body.append([*cells, "", ""])
            continue
        found = of_pair(rows, (name, BESIDE), POINTS)
        body.append([*cells, POINTS.difference(found), p_value(found.t_test)])
    head = ["RKLB on the digits", "seeds", "accuracy %", "worst seed"]
    return markdown_table([*head, "less the first row, points [95 %]", "p, t-test"], body)
