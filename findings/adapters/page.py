"""Adapters beside frozen features: what docs/results/adapters.md shows."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.report.results import ACCURACY, ECE_15, NLL
from fedbary.study.table import read_table, result_rows
from findings import maker

SIDES = {
    "LDA": "LDA on frozen features",
    "FedAvg": "FedAvg on frozen features",
    "adapters": "FedAvg of adapters",
    "Gaussian": "RKLB of Gaussian adapters",
}
"""Each side, and what the page calls it."""


def read(table: pd.DataFrame) -> pd.DataFrame:
    """Return rows with their side and the bytes that a client has sent."""
    side = table["method"].where(table["method"] == "LDA", "FedAvg")
    has = table["adapters"] == "lora"
    side = side.mask(has, "adapters").mask(has & (table["bayesian_layers"] > 0), "Gaussian")
    return table.copy().assign(side=side, kilobytes=table["bytes.up"] * table["rounds"] / 1000)


def _result(folder: Path) -> pd.DataFrame:
    return read(result_rows(read_table(folder)))


def _by_side(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    found = maker.by(rows, "side")
    return {name: found[side] for side, name in SIDES.items() if side in found}


def tables(results: Path) -> Iterator[str]:
    """Yield scores and step sizes, of images and then of texts, and the costs."""
    sent = "KB up a client", lambda runs: f"{runs['kilobytes'].mean():,.0f}"
    for folder in (results, results / "texts"):
        named = [((name, f"{lr:g}" if lr > 0 else "–", len(runs), runs["rounds"].iloc[0]), runs)
                 for name, own in _by_side(_result(folder)).items()
                 for lr, runs in own.groupby("lr", dropna=False)]  # fmt: skip
        head = ("side", "`lr`", "seeds", "rounds")
        yield maker.table(head, named, [sent, ACCURACY, NLL, ECE_15])
        rows = _result(folder / "steps")
        rows["step"] = rows["lr"].where(rows["side"] != "LDA")
        steps = [("no step size", lambda runs: _mean(runs[runs["step"].isna()]))]
        steps += [(f"`lr={lr:g}`", lambda runs, lr=lr: _mean(runs[runs["step"] == lr]))
                  for lr in sorted(rows["lr"].dropna().unique())]  # fmt: skip
        yield maker.table("NLL on validation data", _by_side(rows), [sent, *steps])
    body = {
        row.side: [f"{row.numbers:,}", f"{1000 * row.seconds:.1f}", f"{row.megabytes:.0f}"]
        for row in pd.read_csv(results / "cost.csv").itertuples()
    }
    yield maker.cells("what trains", ["numbers", "ms per step", "MB that a step adds"], body)


def _mean(runs: pd.DataFrame) -> str:
    return f"{runs['nll'].mean():.3f}" if len(runs) else "–"


def facts(results: Path) -> Iterator[float]:
    """Yield differences in NLL to LDA on frozen features, seed by seed and in the mean."""
    for folder in (results, results / "texts"):
        rows = _result(folder)
        nll = rows.pivot_table("nll", "seed", "side")
        yield from (nll["adapters"] - nll["LDA"]).dropna()
        for side in ("adapters", "FedAvg"):
            found = maker.of_pair(rows, (side, "LDA"), NLL)
            yield from (found.mean, found.low, found.high, maker.detectable(found))


def picture(results: Path) -> maker.Figure:
    """Return the NLL after each round, that of LDA as a line."""
    rows = read(read_table(results))
    figure, (axes,) = maker.panels(6.0, 3.6)
    colours = maker.BLUE, maker.SKY, maker.RED, maker.GREEN
    for (side, name), color in zip(SIDES.items(), colours, strict=True):
        own = rows[(rows["side"] == side) & (rows["round"] > 0)]
        if side == "LDA":
            last = own[own["round"] == own["rounds"]]["nll"].mean()
            axes.axhline(last, color=color, linestyle="--", label=name)
        elif len(own):
            maker.course(axes, own["round"], own["nll"], color=color, fmt="o-", label=name)
    axes.set(xlabel="round", ylabel="NLL", xticks=sorted(set(rows["round"]) - {0}))
    axes.legend(frameon=False)
    return figure
