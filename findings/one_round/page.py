"""Rivals of one round: the tables of a section of docs/results/pretrained.md."""

from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.report.results import Metric
from findings import maker
from findings.pretrained.page import read

SCORES = (Metric("accuracy", "Accuracy %", 100, 2), maker.AT_T, Metric("temperature", "T", 1, 2))
HELD_OUT = Metric("held_out", "NLL at T, held out")
PAIRS = [("QDA", "LDA"), ("Ridge", "LDA")]
for run in ("FedAvg 1", "FedAvg 5", "FedAvg 20", "SCAFFOLD 5", "SCAFFOLD 20"):
    PAIRS += [(f"{run} from {start}", f"{run} from zeros") for start in ("LDA/T", "Ridge")]
PAIRS += [("SCAFFOLD 5 from LDA/T", "sites 2"), ("SCAFFOLD 20 from LDA/T", "one place")]
PAIRS += [("QDA", "sites 2")]
NETS = [(side, "FedLPA") for side in
        ("FedAvg", "mean by precision", "FedFisher, diagonal", "FedFisher, Kronecker")]  # fmt: skip
NETS += [("FedBEns, 3 starts", "FedAvg, 3 starts")]


def tables(results: Path) -> Iterator[str]:
    """Yield scores and differences of heads on features, then of networks from scratch."""
    for file, head, several in (("cells.csv", "head", PAIRS), ("nets.csv", "network", NETS)):
        cells = pd.read_csv(results / file)
        fresh = maker.where(cells, stage="fresh")
        yield maker.table((head, "setting"), _named(fresh), SCORES)
        others = read(results.parent / "pretrained")
        others = others[others["side"].isin(["sites 2", "one place"])]
        others = others[others["seed"].isin(fresh["seed"])]
        found = maker.pairs(pd.concat([fresh, others]), several, maker.AT_T)
        yield maker.tests_table(f"{head}s, pairs", maker.AT_T, found)
        if head == "head":
            sums = maker.where(cells, stage="choice")
            sums = sums[~sums["side"].str.contains("from")]
            yield maker.table(("one round, tried", "setting"), _named(sums), [HELD_OUT])


def _named(cells: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    groups = maker.by(cells, "side", "setting").items()
    return {(side, _said(setting)): own for (side, setting), own in groups}


def _said(setting: str) -> str:
    held = {name: value for name, value in literal_eval(setting).items() if name != "method"}
    return " ".join(f"{name}={_value(value)}" for name, value in held.items()) or "–"


def _value(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else f"{value}"
