"""Thirteen small sets: the tables of docs/results/small-sets.md."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.report.results import Metric
from fedbary.tasks._failing import FAR_BEHIND as SAID
from findings import maker

SCORE = Metric("score", "", 100, 1)
FAR = 5
"""From how many points behind the linear model on a worst run is told."""


def read(results: Path) -> pd.DataFrame:
    """Return a row a cell, with the points that it is behind the linear model."""
    cells = pd.read_json(results / "cells.jsonl.xz", lines=True)
    deal = cells["clients"].astype(str) + " clients, α " + cells["alpha"].astype(str)
    behind = 100 * (cells["linear"] - cells["score"])
    far, said = behind > FAR - 1e-6, cells["rival"] - cells["score"] > SAID - 1e-6
    return cells.assign(deal=deal, behind=behind, far=far, told=far & said)


def tables(results: Path) -> Iterator[str]:
    """Yield the scores by set and deal, the worst runs, and how many of those that are far say so.

    The worst are those furthest behind the linear model, on sets where that is far.
    """
    cells = read(results)
    sets = maker.by(cells, "set")
    linear = "linear", lambda own: SCORE.show(own.drop_duplicates("seed")["linear"])
    deals = [maker.of(deal, SCORE, deal=deal) for deal in cells["deal"].unique()]
    yield maker.table("set", sets, [linear, *deals])
    worst, far = {}, {}
    for name, own in sets.items():
        most = own[own["behind"].round(1) == own["behind"].max().round(1)]
        if (points := most["behind"].iloc[0]) >= FAR:
            where = "; ".join(most["deal"] + ", seed " + most["seed"].astype(str))
            worst[name] = [f"{points:.1f}", where]
        if own["far"].any():
            far[name] = own
    yield maker.cells("set", ["points behind", "where"], worst)
    counts = {"runs that are far behind": "far", "of these say so": "told"}
    columns = [(head, lambda own, name=name: f"{own[name].sum()}") for head, name in counts.items()]
    yield maker.table("set", far | {"together": cells}, columns)


def facts(results: Path) -> Iterator[float]:
    """Yield how far each set is behind in the mean over deals, and the worst score of each."""
    cells = read(results).groupby("set")
    yield from (*cells["behind"].mean(), *(100 * cells["score"].min()))


def picture(results: Path) -> maker.Figure:
    """Return the lead over the linear model, a row a set: each run, and the mean."""
    figure, (axes,) = maker.panels(5.0, 3.2)
    sets = maker.by(read(results), "set")
    maker.draw_rows(axes, {name: -own["behind"] for name, own in sets.items()})
    axes.axvline(0, color="black", linewidth=1)
    axes.set_xlabel("points ahead of the linear model")
    return figure
