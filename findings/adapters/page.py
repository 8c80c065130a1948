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
        rows["step"] = rows["lr"].where(rows["side"] != "LDA", 0.0)
        steps = [maker.mean("no step size", NLL, step=0.0)]
        steps += [maker.mean(f"`lr={lr:g}`", NLL, step=lr)
                  for lr in sorted(rows["lr"].dropna().unique())]  # fmt: skip
        yield maker.table("NLL on validation data", _by_side(rows), [sent, *steps])
    body = {
        row.side: [f"{row.numbers:,}", f"{1000 * row.seconds:.1f}", f"{row.megabytes:.0f}"]
        for row in pd.read_csv(results / "cost.csv").itertuples()
    }
    yield maker.cells("what trains", ["numbers", "ms per step", "MB that a step adds"], body)


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
    rows = rows[rows["round"] > 0]
    figure, (axes,) = maker.panels(6.0, 3.6)
    last = maker.where(rows[rows["round"] == rows["rounds"]], side="LDA")["nll"].mean()
    axes.axhline(last, color=maker.BLUE, linestyle="--", label=SIDES["LDA"])
    rest = {side: SIDES[side] for side in ("FedAvg", "adapters", "Gaussian")}
    maker.courses(axes, rows, "side", rest, "round", NLL, fmt="o-")
    axes.set(xlabel="round", xticks=sorted(set(rows["round"])))
    axes.legend(frameon=False)
    return figure
