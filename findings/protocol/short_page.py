"""BA-BFL's Table 1 at a fiftieth of its training: the last tables of docs/results/rules.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.report.cells import ACCURACY, MAIN, NLL, Metric
from fedbary.report.differences import differences, pairs_table
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows
from findings._pairs import SEED
from findings.published import PRINTED, published

NAMES = {"fashionmnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
RIVALS = ("WB", "EAA", "AALV")
POINTS = ("dataset", "bayesian_layers", *SEED)


def scores_table(rows: pd.DataFrame) -> str:
    """Return our scores and the paper's, by data set, n and rule."""
    body = []
    for dataset, name in NAMES.items():
        of_it = rows[rows["dataset"] == dataset].sort_values(["bayesian_layers", "rule"])
        for (layers, rule), runs in of_it.groupby(["bayesian_layers", "rule"]):
            cells = [metric.show(runs[metric.column]) for metric in MAIN]
            theirs = [published(dataset, layers, rule, printed) for printed in PRINTED.values()]
            printed = [f"{mean:.2f} ± {std:.2f}" for mean, std in theirs]
            body.append([name, rule, str(layers), *cells, *printed])
    paper = [f"*paper's {name}*" for name in ("accuracy", "ECE", "NLL")]
    return markdown_table(
        ["data set", "rule", "n", *(metric.label for metric in MAIN), *paper], body
    )


def ahead(rows: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return how far RKLB is from the rules that keep the variances, over all settings."""
    pairs = [("RKLB", rival) for rival in RIVALS]
    return differences(rows.assign(side=rows["rule"]), pairs, [metric], SEED, POINTS)


def tables(results: Path) -> str:
    """Return all tables in Markdown."""
    rows = result_rows(read_table(results))
    parts = [scores_table(rows)]
    parts += [markdown_table(*pairs_table(ahead(rows, metric))) for metric in (NLL, ACCURACY)]
    return "\n\n".join(parts)


def facts(results: Path) -> Iterator[float]:
    """Yield the epistemic uncertainty of GAA and of RKLB on Fashion-MNIST at n = 3."""
    rows = result_rows(read_table(results))
    shown = rows[(rows["dataset"] == "fashionmnist") & (rows["bayesian_layers"] == 3)]
    yield from shown.groupby("rule")["uncertainty.epistemic"].mean().loc[["GAA", "RKLB"]]
