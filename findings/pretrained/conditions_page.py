"""Heads on pretrained features in other conditions: tables of docs/results/pretrained.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedbary.report.cells import NLL
from fedbary.report.differences import differences
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table
from findings._pairs import SEED
from findings.pretrained.page import read

CONDITIONS: dict[str, dict[str, object]] = {
    "Dirichlet 0.5": {"partition": "dirichlet", "alpha": 0.5},
    "two classes a client": {"partition": "classes", "classes_per_client": 2},
    "one class a client": {"partition": "classes", "classes_per_client": 1},
    "100 clients, a fifth a round": {"clients": 100},
    "200 labels in all": {"train_fraction": 0.004},
    "50 labels in all": {"train_fraction": 0.001},
}
"""What differs from the first table, by its name on the page."""

HEADS = {
    "LDA": "LDA, 1 round",
    "sites": "Kronecker sites, 2",
    "FedAvg": "FedAvg, 20",
    "SCAFFOLD": "SCAFFOLD, 20",
    "one place": "one place",
}
"""The sides in their order, and what the page calls them."""

PAIRS = [("LDA", "FedAvg"), ("LDA", "SCAFFOLD")]
PAIRS += [("sites", "FedAvg"), ("sites", "SCAFFOLD"), ("sites", "one place")]


def tables(results: Path) -> str:
    """Return the scores by condition, the differences, and the chosen step sizes.

    One place is the first table's, where a condition has its examples.
    """
    rows, first = read(results), read(results.parent)
    central = first[first["kind"] == "one place"]
    groups = {}
    for name, settings in CONDITIONS.items():
        runs = of_condition(rows, settings)
        if "train_fraction" not in settings:
            runs = pd.concat([runs, central[central["seed"].isin(runs["seed"])]])
        groups[name] = runs
    return "\n\n".join([compared(groups, HEADS, PAIRS), chosen(results / "choice", CONDITIONS)])


def facts(results: Path) -> list[float]:
    """Return the NLL of the sites with 100 clients after each round."""
    table = read_table(results)
    runs = table[(table["method"] == "PVI") & (table["clients"] == 100)]
    return runs.groupby("round")["nll"].mean().tolist()


def of_condition(rows: pd.DataFrame, settings: Mapping[str, object]) -> pd.DataFrame:
    """Return the runs of one condition."""
    return rows[(rows[list(settings)] == pd.Series(settings)).all(axis=1)]


def compared(
    groups: Mapping[str, pd.DataFrame],
    heads: Mapping[str, str],
    pairs: Sequence[tuple[str, str]],
) -> str:
    """Return the scores of each group of runs by side, and the differences in NLL."""
    scores, tests = [], []
    for name, found in groups.items():
        runs = found.assign(side=found["kind"])
        scores.append([name, *(_cell(runs[runs["side"] == side]) for side in heads)])
        told = {
            (row.first, row.second): NLL.difference(row)
            for row in differences(runs, pairs, [NLL], SEED).itertuples()
        }
        tests.append([name, *(told.get(pair, "–") for pair in pairs)])
    titles = [f"{one} − {other}, NLL [95 %]" for one, other in pairs]
    return "\n\n".join(
        [
            markdown_table(["accuracy % / NLL", *heads.values()], scores),
            markdown_table(["condition", *titles], tests),
        ]
    )


def _cell(runs: pd.DataFrame) -> str:
    if runs.empty:
        return "–"
    return f"{100 * runs['accuracy'].mean():.2f} / {runs['nll'].mean():.3f}"


def chosen(
    results: Path, conditions: Mapping[str, Mapping[str, object]], score: str = "nll"
) -> str:
    """Return a score on validation data after the last round, by condition and step size."""
    table = read_table(results)
    last = table[table["round"] == table["rounds"]]
    body = []
    for name, settings in conditions.items():
        for kind in ("barycentre", "SCAFFOLD"):
            runs = of_condition(last, settings)
            mean = runs[runs["method"] == kind].groupby("lr")[score].mean()
            cells = ", ".join(f"{lr:g}: {nll:.4f}" for lr, nll in mean.items())
            if cells:
                body.append([name, "FedAvg" if kind == "barycentre" else kind, cells])
    return markdown_table(["condition", "side", "`lr`: NLL on validation data"], body)
