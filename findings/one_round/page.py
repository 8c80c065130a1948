"""Rivals of one round: the tables of a section of docs/results/pretrained.md."""

from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.report.results import Metric
from findings import maker

SCORES = (Metric("accuracy", "Accuracy %", 100, 2), maker.AT_T, Metric("temperature", "T", 1, 2))
SUMS = ["Ridge", "LDA on random features", "Ridge on random features", "Ridge on buckets", "QDA"]
PAIRS = [(side, "LDA") for side in SUMS]
PAIRS += [
    (f"{method} {rounds} from {start}", f"{method} {rounds} from zeros")
    for method, rounds in (("FedAvg", 1), ("FedAvg", 5), ("FedAvg", 20), ("SCAFFOLD", 5),
                           ("SCAFFOLD", 20)) for start in ("LDA/T", "Ridge")
]  # fmt: skip
PAIRS += [(f"SCAFFOLD {rounds} from LDA/T", "LDA") for rounds in (5, 20)]
NETS = [(side, "FedLPA") for side in
        ("FedAvg", "mean by precision", "FedFisher, diagonal", "FedFisher, Kronecker")]  # fmt: skip
NETS += [("FedBEns, 3 starts", "FedAvg, 3 starts")]


def tables(results: Path) -> Iterator[str]:
    """Yield scores and differences of heads on features, then of networks from scratch."""
    for file, several in (("cells.csv", PAIRS), ("nets.csv", NETS)):
        fresh = maker.where(pd.read_csv(results / file), stage="fresh")
        groups = maker.by(fresh, "side", "setting").items()
        named = {(side, _said(setting)): own for (side, setting), own in groups}
        head = "head" if several is PAIRS else "network"
        yield maker.table((head, "setting"), named, SCORES)
        yield maker.tests_table(
            f"{head}s, pairs", maker.AT_T, maker.pairs(fresh, several, maker.AT_T)
        )


def _said(setting: str) -> str:
    held = {name: value for name, value in literal_eval(setting).items() if name != "method"}
    return " ".join(f"{name}={_value(value)}" for name, value in held.items()) or "–"


def _value(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
