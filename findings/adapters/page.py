"""Adapters beside frozen features: what docs/results/adapters.md shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import BLUE, GREEN, RED, SKY, open_frame, sheet
from fedbary.report.cells import ACCURACY, ECE_15, NLL
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows
from findings._pairs import detectable, of_pair

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDES = {
    "LDA": "LDA on frozen features",
    "FedAvg": "FedAvg on frozen features",
    "adapters": "FedAvg of adapters",
    "Gaussian": "RKLB of Gaussian adapters",
}
"""Each side, and what the page calls it."""

COLORS = dict(zip(SIDES, (BLUE, SKY, RED, GREEN), strict=True))


def read(table: pd.DataFrame) -> pd.DataFrame:
    """Return rows with their side and the bytes that a client has sent."""
    side = table["method"].where(table["method"] == "LDA", "FedAvg")
    has = table["adapters"] == "lora"
    side = side.mask(has, "adapters")
    side = side.mask(has & (table["bayesian_layers"] > 0), "Gaussian")
    kilobytes = table["bytes.up"] * table["rounds"] / 1000
    return table.copy().assign(side=side, kilobytes=kilobytes)


def tables(results: Path) -> str:
    """Return scores and step sizes, of images and then of texts, and the costs, in Markdown."""
    made = []
    for of in (results, results / "texts"):
        made += [_scores(_result(of)), _tried(_result(of / "steps"))]
    return "\n\n".join([*made, _cost(results)])


def facts(results: Path) -> Iterator[float]:
    """Yield differences in NLL to LDA on frozen features, seed by seed and in the mean."""
    for folder in (results, results / "texts"):
        rows = _result(folder)
        nll = rows.pivot_table("nll", "seed", "side")
        yield from (nll["adapters"] - nll["LDA"]).dropna()
        for side in ("adapters", "FedAvg"):
            found = of_pair(rows, (side, "LDA"), NLL)
            yield from (found.mean, found.low, found.high, detectable(found))


def _result(folder: Path) -> pd.DataFrame:
    return read(result_rows(read_table(folder)))


def _scores(rows: pd.DataFrame) -> str:
    body = []
    for side, name in SIDES.items():
        for lr, runs in rows[rows["side"] == side].groupby("lr", dropna=False):
            sent = f"{runs['kilobytes'].mean():,.0f}"
            told = [f"{lr:g}" if lr > 0 else "–", len(runs), runs["rounds"].iloc[0], sent]
            shown = [metric.show(runs[metric.column]) for metric in (ACCURACY, NLL, ECE_15)]
            body.append([name, *map(str, told), *shown])
    labels = [metric.label for metric in (ACCURACY, NLL, ECE_15)]
    return markdown_table(["side", "`lr`", "seeds", "rounds", "KB up a client", *labels], body)


def _tried(rows: pd.DataFrame) -> str:
    """Return the NLL of each side by its step size, as means of seeds; LDA has no step size."""
    steps = sorted(rows["lr"].dropna().unique())
    body = []
    for side, name in SIDES.items():
        if (of_it := rows[rows["side"] == side]).empty:
            continue
        by = of_it.groupby("lr")["nll"].mean()
        held = [f"{by[lr]:.3f}" if lr in by.index else "–" for lr in steps]
        alone = f"{of_it['nll'].mean():.3f}" if side == "LDA" else "–"
        body.append([name, f"{of_it['kilobytes'].mean():,.0f}", alone, *held])
    head = ["NLL on validation data", "KB up a client", "no step size"]
    return markdown_table([*head, *(f"`lr={lr:g}`" for lr in steps)], body)


def _cost(results: Path) -> str:
    held = pd.read_csv(results / "cost.csv")
    body = [
        [row.side, f"{row.numbers:,}", f"{1000 * row.seconds:.1f}", f"{row.megabytes:.0f}"]
        for row in held.itertuples()
    ]
    return markdown_table(["what trains", "numbers", "ms per step", "MB that a step adds"], body)


def picture(results: Path) -> Figure:
    """Return the NLL after each round, that of LDA as a line."""
    rows = read(read_table(results))
    figure = sheet(6.0, 3.6)
    axes = figure.subplots()
    for side, name in SIDES.items():
        if (of_it := rows[rows["side"] == side]).empty:
            continue
        if side == "LDA":
            last = of_it[of_it["round"] == of_it["rounds"]]["nll"].mean()
            axes.axhline(last, color=COLORS[side], linestyle="--", label=name)
            continue
        mean = of_it[of_it["round"] > 0].groupby("round")["nll"].mean()
        axes.plot(mean.index, mean.to_numpy(), "o-", color=COLORS[side], label=name)
    axes.set_xticks(sorted(set(rows["round"]) - {0}))
    axes.set_xlabel("round")
    axes.set_ylabel("NLL")
    axes.legend(frameon=False)
    open_frame(axes)
    return figure
