"""Sections on regressions: scores by data set, method and settings, and calibration."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedbary.report.cells import NLL, Metric
from fedbary.report.document import Document
from fedbary.report.estimate import Estimate
from fedbary.report.markup import bold
from fedbary.report.method_tables import add_methods, several
from fedbary.report.pairs import add_pairs
from fedbary.report.results import REPEATS, Results, grouped, scored_after, scored_on
from fedbary.report.run_list import add_runs
from fedbary.settings.config import bookkeeping
from fedbary.study.grid import NAMING
from fedbary.study.table import settings_of

RANKED = (NLL, Metric("rmse", "RMSE", decimals=2), Metric("crps", "CRPS", decimals=2))
SCORES = {"nll": "NLL", "rmse": "RMSE", "sharpness": "sharpness", "crps": "CRPS"}
COVERAGE = ("coverage_50", "coverage_90", "coverage_95")
CENTRAL = "central.csv"
"""Scores of methods that see all data at once, beside the runs; see findings/regression."""

POINT = ["dataset", "split", "method", "settings"]

REQUIRED = (*NAMING, "nll", "rmse", "sharpness", "evaluate_on", "split")

TESTS = {
    "test": "the rows that a split keeps for the test",
    "validation": "training rows that were kept from all clients (validation)",
}


def write(results: Results, document: Document) -> None:
    """Add the sections to a document, from the tables of runs and of central methods."""
    last = results.last.sort_index()
    document.text(
        """{runs} runs of {clients} clients. All numbers are of {scored}, {after}, in the target's
        own units, over the splits.""",
        runs=len(last),
        clients=", ".join(map(str, sorted(last["clients"].unique()))),
        scored=scored_on(last, TESTS),
        after=scored_after(last),
    )
    if several(results):
        add_methods(results, document, RANKED, RANKED[:2])
    document.heading("Scores, and how many targets lie in the 50, 90 and 95 % intervals")
    document.text(
        """Mean ± standard error over the splits; bold is the lowest mean NLL of a data set. Runs
        whose clients estimate a noise may also be scored *without noise*. **BLR**, **VI** and
        **DE** see all data at once: Bayesian linear regression, mean-field variational inference,
        deep ensembles of five networks."""
    )
    for condition, rows in grouped(last, "condition"):
        document.heading(condition, 3)
        document.table(*_table(scores_by_method(rows, results.folder)))
    add_pairs(results, document, RANKED)
    add_runs(document, last)


def scores_by_method(last: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Return the scores by data set, split, method and settings, seeds of one split averaged.

    `last` has a row a run; methods that see all data come from the folder's table of them.
    """
    linear = last["model"].map({"linear": ", linear"}).fillna("")
    last = last.assign(method=last["rule"] + linear, settings=_differences(last))
    columns = [*SCORES, *COVERAGE]
    bare = last.reindex(columns=[f"without_noise.{name}" for name in columns])
    bare = last[POINT].join(bare.set_axis(columns, axis=1)).dropna(subset=["nll"])
    found = [last[[*POINT, *columns]], bare.assign(method=bare["method"] + ", without noise")]
    if (folder / CENTRAL).exists():
        central = pd.read_csv(folder / CENTRAL).assign(settings="")
        found.append(central.loc[central["dataset"].isin(last["dataset"]), [*POINT, *columns]])
    return pd.concat(found).groupby(POINT, sort=False, as_index=False).mean()


def _differences(last: pd.DataFrame) -> pd.Series:
    """Return, as texts, the settings but the split that differ between a method's runs."""
    keys = [key for key in settings_of(last) if key not in {*bookkeeping(), *REPEATS}]
    texts = pd.Series("", index=last.index)
    for _, held in last.groupby(["dataset", "rule", "model"]):
        for key in (key for key in keys if held[key].nunique() > 1):
            texts[held.index] += [
                f"{key}={value} " if value == value else "" for value in held[key]
            ]
    return texts.str.strip().str.replace(" ", ", ")


def _table(scores: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    rows = []
    for dataset, of_set in scores.groupby("dataset", sort=False):
        best = of_set.groupby(["method", "settings"])["nll"].mean().min()
        for (method, settings), held in of_set.groupby(["method", "settings"], sort=False):
            cells = [str(Estimate.of(held[metric])) for metric in SCORES]
            if held["nll"].mean() == best:
                cells[0] = bold(cells[0])
            covered = " / ".join(f"{100 * held[name].mean():.0f}" for name in COVERAGE)
            splits = str(held["split"].nunique())
            rows.append([str(dataset), method, settings, splits, *cells, covered])
    head = ["data set", "method", "settings", "splits", *SCORES.values(), "in 50 / 90 / 95 %"]
    return head, rows
