"""Heads on a text network's features: what docs/results/text.md shows."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.report.results import NLL, Metric
from fedbary.study.table import read_table
from findings import maker
from findings.pretrained import page as pretrained

SIDES = ["LDA", "Ridge", "sites 2", "FedAvg 1", "FedAvg 5", "FedAvg 20", "one place"]
"""The sides of the table in its order; a number is that of rounds."""

PAIRS = [("LDA", side) for side in SIDES[3:]]
PAIRS += [("sites 2", side) for side in ("FedAvg 5", "FedAvg 20", "one place")]
"""What is tested, by NLL."""

ALONE = 50
"""Local epochs of a client that trains alone."""


FINE = Metric("nll", "NLL", decimals=4)


def read(results: Path) -> pd.DataFrame:
    """Return the result of every run, with its kind of head and its side."""
    rows = pretrained.read(results)
    rows.loc[rows["local_epochs"] == ALONE, ["kind", "side"]] = "alone"
    return rows


def tables(results: Path) -> Iterator[str]:
    """Yield the scores, the tests, and the NLL on validation data by setting and rounds."""
    rows = read(results)
    yield pretrained.scores(rows, SIDES)
    yield maker.table("pair", maker.pairs(rows, PAIRS, NLL), [maker.effect(NLL), *maker.P_AND_HOLM])
    table, keys = read_table(results / "choice"), ["local_epochs", "lr", "weight_decay"]
    fedavg, central = (table[table["method"] == name] for name in ("barycentre", "PVI"))
    named = [(tuple(f"{each:g}" for each in at), own) for at, own in fedavg.groupby(keys)]
    columns = [maker.mean(f"round {n}", FINE, round=n) for n in (1, 5, 20)]
    yield maker.table(("FedAvg: `local_epochs`", "`lr`", "`weight_decay`"), named, columns)
    named = ((f"{std:g}", own) for std, own in central[central["round"] == 1].groupby("prior_std"))
    yield maker.table("one place: `prior_std`", named, [maker.mean("NLL", FINE)])


def facts(results: Path) -> Iterator[float]:
    """Yield a client alone's accuracy in per cent, the mean and the worst, and differences."""
    rows = read(results)
    yield from pretrained.of_alone(rows)
    for side in ("LDA", "sites 2"):
        yield maker.detectable(maker.of_pair(rows, (side, "FedAvg 5"), NLL))
    for side in ("sites 2", "Ridge"):
        found = maker.of_pair(rows, (side, "LDA"), NLL)
        yield from (found.mean, found.low, found.high)


def picture(results: Path) -> maker.Figure:
    """Return the NLL against rounds, with the central model as a line."""
    rows = read(results)
    figure, (axes,) = maker.panels(5.0, 3.4)
    kinds = "LDA", "Ridge", "sites", "FedAvg"
    pretrained.beside_central(axes, rows, kinds, "rounds", NLL)
    maker.log_ticks(axes, (1, 5, 20))
    axes.legend(frameon=False)
    return figure
