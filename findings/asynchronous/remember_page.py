"""Clients that are away and are remembered: a table and a picture of the page asynchronous.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import open_frame, sheet
from fedbary.report.cells import ACCURACY, NLL
from fedbary.report.markup import markdown_table
from findings._pairs import of_pair
from findings.asynchronous.page import ALL, ASYNC, COLORS, POINT, TIME, _draw, reached, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"components.npz": "components"}
"""What the data sets are called."""

CELL = ["dataset", "clients", "name", "alpha"]


def tables(results: Path) -> str:
    """Return times and differences of the run that does not wait, a row a federation."""
    table = read(results)
    rows, near = reached(table), reached(table, POINT).set_index("run")
    body = []
    for (dataset, clients, name, alpha), cell in rows.groupby(CELL, sort=False):
        runs = cell[cell["waits"] == ASYNC]
        sides, pair = cell.assign(side=cell["waits"]), (ASYNC, ALL)
        body.append(
            [
                NAMES[dataset],
                f"{alpha:g}",
                f"{clients}",
                name,
                f"{cell.loc[cell['waits'] == ALL, TIME].mean():.0f}",
                _ratio(runs["ratio"]),
                _ratio(near.loc[runs["run"], "ratio"]),
                ACCURACY.difference(of_pair(sides, pair, ACCURACY)),
                NLL.difference(of_pair(sides, pair, NLL)),
            ]
        )
    head = ["data", "α", "clients", "method", "seconds of rounds", "ratio, to the accuracy"]
    head += ["ratio, to a point below", "last accuracy, % [95 %]", "last NLL [95 %]"]
    return markdown_table(head, body)


def _ratio(ratios: pd.Series) -> str:
    """Return the median over all runs, where one that does not get there is the slowest."""
    filled, there = ratios.fillna(float("inf")), int(ratios.notna().sum())
    middle = filled.median()
    said = f"{middle:.2f}" if middle < float("inf") else "none"
    return said if there == len(ratios) else f"{said} ({there} of {len(ratios)} get there)"


def facts(results: Path) -> Iterator[float]:
    """Yield no number beside those of the table."""
    yield from ()


def picture(results: Path) -> Figure:
    """Draw accuracy against virtual time, a panel a federation."""
    table = read(results)
    cells = [*table.groupby(CELL, sort=False)]
    figure = sheet(9.0, 2.6 * -(-len(cells) // 2))
    panels = figure.subplots(-(-len(cells) // 2), 2, squeeze=False).ravel()
    for axes, ((dataset, clients, name, alpha), of_it) in zip(panels, cells, strict=False):
        for waits in (ALL, ASYNC):
            _draw(axes, of_it[of_it["waits"] == waits], "accuracy", 100, waits, COLORS[waits])
        axes.set_title(f"{NAMES[dataset]}, {clients} clients, {name}, α = {alpha:g}", loc="left")
        axes.set(xlabel="virtual seconds", ylabel="accuracy %")
        open_frame(axes)
    panels[0].legend(frameon=False, title="the server waits for", loc="lower right")
    return figure
