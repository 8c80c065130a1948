"""An experiment's runs of one task, as the sections of its report show them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedbary.aggregation import RULES
from fedbary.figures.document import Document, bold
from fedbary.runs.schema import HELD_OUT, lower_is_better
from fedbary.scores.stats import corrected, paired
from fedbary.study.arms import NO_DATA, with_arms, with_methods
from fedbary.study.table import result_rows


@dataclass(frozen=True)
class Metric:
    """A column of the table, and how it is shown."""

    column: str
    label: str
    scale: float = 1.0
    decimals: int = 3

    @property
    def lower_is_better(self) -> bool | None:
        """True if the lower value is better; None if there is no better one."""
        return lower_is_better(self.column)

    def show(self, values: Iterable[float]) -> str:
        """Return mean ± standard deviation of values in the table's unit.

        If a value is missing, there is no mean: the remaining values may be the better ones.
        """
        found = np.array(list(values), dtype=float) * self.scale
        if (lost := int(np.isnan(found).sum())) > 0:
            return "–" if lost == len(found) else f"– ({lost} of {len(found)} missing)"
        text = f"{found.mean():.{self.decimals}f}"
        return f"{text} ± {found.std(ddof=1):.{self.decimals}f}" if len(found) > 1 else text

    def difference(self, found: Any) -> str:
        """Return a mean difference, in this metric's unit, with its 95 % interval if it has one.

        `found` is a `Paired`, or a row of `differences`.
        """
        numbers = (found.mean, found.low, found.high)
        mean, low, high = (f"{number:+.{self.decimals}f}" for number in numbers)
        return mean if math.isnan(found.low) else f"{mean} [{low}, {high}]"


ACCURACY = Metric("accuracy", "Accuracy %", 100, 2)
ECE_15 = Metric("ece_15", "ECE %, 15 bins", 100, 2)
ECE_100 = Metric("ece_100", "ECE %, 100 bins", 100, 2)
NLL = Metric("nll", "NLL")
BRIER = Metric("brier", "Brier")
MAIN = (ACCURACY, ECE_15, ECE_100, NLL)
DETECTION = (
    Metric("ood.auroc_entropy", "AUROC % of entropy", 100, 2),
    Metric("ood.auroc_epistemic", "AUROC % of mutual information", 100, 2),
)

SHOWN = {
    "classification": (
        ACCURACY, NLL, ECE_15, ECE_100, BRIER, replace(DETECTION[0], label="OOD AUROC %")
    ),
    "tables": (
        ACCURACY, NLL, Metric("auroc", "AUROC %", 100, 2), BRIER,
        Metric("sensitivity", "Sensitivity %", 100, 2),
    ),
    "regression": (
        NLL, Metric("rmse", "RMSE", decimals=2), Metric("crps", "CRPS", decimals=2),
        Metric("sharpness", "sharpness", decimals=2),
        *(Metric(f"coverage_{level}", f"in {level} %", 100, 0) for level in (50, 90, 95)),
    ),
}  # fmt: skip
"""Scores of a task in a report; those of other tasks are the ones whose courses they draw."""

CLIENTS = (
    Metric("personal.held_out.personal.weighted_accuracy", "own models, own data %", 100, 2),
    Metric("personal.held_out.personal.worst10_accuracy", "… worst tenth %", 100, 2),
    Metric("personal.held_out.global.weighted_accuracy", "global, own data %", 100, 2),
    Metric("local_models.weighted_accuracy", "clients' models, weighted %", 100, 2),
    Metric("local_models.worst10_accuracy", "their worst tenth %", 100, 2),
)
"""Scores of the clients' models: own ones that they keep, and those that leave for the server."""

UNCERTAINTY = (
    Metric("uncertainty.entropy", "Total, nats"),
    Metric("uncertainty.aleatoric", "Aleatoric, nats"),
    Metric("uncertainty.epistemic", "Epistemic, nats", decimals=4),
    Metric("by_chance.ece_15", "ECE % by chance, 15 bins", 100, 2),
    *DETECTION,
    Metric("ood.auroc_mahalanobis", "AUROC % of relative Mahalanobis", 100, 2),
    *(Metric(f"rejection.0.{k}", f"Accuracy %, {k}0 % rejected", 100, 2) for k in (1, 2, 3, 5)),
)


Named = list[tuple[str, pd.DataFrame]]
"""Names of methods with the rows of their runs' results."""

_OWN = re.compile(r"personal\.held_out\.(?!global)(.+)\.weighted_accuracy")
_DATA = {"held_out": "own data", "shares": "test images of its shares"}
_PARTS = {"weighted_accuracy": "%", "worst10_accuracy": "worst tenth %"}


def own_models(document: Document, named: Named) -> None:
    """Add a row for each model of the clients' own, and for the global one beside it."""
    parts = list(itertools.product(_DATA, _PARTS))
    body = []
    for name, runs in named:
        own = [m[1] for c in runs if (m := _OWN.fullmatch(c)) and runs[c].notna().any()]
        for model in ["global", *own] if own else []:
            kind, _, weight = model.partition("-")
            called = f"projected, λ = {weight}" if weight else kind.replace("personal", "own")
            columns = [f"personal.{data}.{model}.{part}" for data, part in parts]
            shown = [Metric(c, "", 100, 2).show(runs[c]) if c in runs else "–" for c in columns]
            body.append([name, called, *shown])
    if body:
        document.text(
            """Models of the clients' own, each beside the global one: on what a client holds out,
            and on test images drawn with the client's label shares. *Projected* models are the
            barycentre of a client's posterior, at weight λ, and the global one, at weight 1."""
        )
        header = [f"{_DATA[data]}: {_PARTS[part]}" for data, part in parts]
        document.table(["method", "model", *header], body)


def marked(metric: Metric, means: Sequence[float], shown: Sequence[str]) -> list[str]:
    """Embolden the best cell of a column; ties share.

    A single cell, and a column without a better direction, are not marked.
    """
    if metric.lower_is_better is None or len(means) < 2:
        return list(shown)
    sign = 1 if metric.lower_is_better else -1
    rounded = np.array([sign * round(mean, metric.decimals) for mean in means])
    best = np.nanmin(rounded)
    return [bold(t) if value == best else t for value, t in zip(rounded, shown, strict=True)]


def differences(
    rows: pd.DataFrame,
    sides: Sequence[tuple[str, str]],
    metrics: Sequence[Metric],
    repeats: Sequence[str],
    least: int = 1,
) -> pd.DataFrame:
    """Return the mean of first − second over the repeats that both sides have a score of.

    Parameters
    ----------
    rows : DataFrame
        A row a run, with a column `side`. A side's runs of one point are averaged.
    sides : sequence of (str, str)
        The values of `side` to compare, first and second.
    metrics : sequence of Metric
        Metrics to compare.
    repeats : sequence of str
        The columns whose values are repetitions, each an independent pair: the seed, the split.
    least : int
        Repetitions that a pair must share to be compared.

    Returns
    -------
    DataFrame
        A row for each metric and pair. `metric`, `first` and `second` name it. `mean`, `low`,
        `high`, `t_test`, `wilcoxon`, `pairs` and `least` are those of
        `fedbary.scores.stats.Paired`, in the metric's unit. `holm` is the t-test's p corrected for
        the pairs of the metric. `repeats` counts a side's repeats, `ahead` the pairs in which the
        first side is better, see `fedbary.runs.schema`, `ties` the equal pairs.
    """
    found: list[dict[str, Any]] = []
    for metric in metrics:
        pairs = [_compared(rows, pair, metric, repeats, least) for pair in sides]
        known = [row for row in pairs if row is not None]
        p_values = corrected([row["t_test"] for row in known])
        found += [{**row, "holm": p} for row, p in zip(known, p_values, strict=True)]
    return pd.DataFrame(found, columns=list(found[0]) if found else ["metric", "first", "second"])


def _compared(
    rows: pd.DataFrame, pair: tuple[str, str], metric: Metric, repeats: Sequence[str], least: int
) -> dict[str, Any] | None:
    scores = [
        metric.scale
        * rows[rows["side"] == side]
        .groupby(list(repeats), sort=False, dropna=False)[metric.column]
        .mean()
        for side in pair
    ]
    every = scores[0].index.union(scores[1].index, sort=False)
    known = [side.dropna() for side in scores]
    shared = known[0].index.intersection(known[1].index, sort=False)
    if len(shared) < least:
        return None
    one, two = (side[shared] for side in known)
    return {
        "metric": metric,
        "first": pair[0],
        "second": pair[1],
        **vars(paired(one.tolist(), two.tolist())),
        "repeats": len(every),
        "ahead": int((one < two if metric.lower_is_better else one > two).sum()),
        "ties": int((one == two).sum()),
    }


HeadedRows = tuple[list[str], list[list[str]]]
"""Header and rows."""


def pairs_table(found: pd.DataFrame) -> HeadedRows:
    """Return a row a pair and score, of `differences`: effect, wins, tests, least effect seen."""
    rows = [
        [
            f"{row.first} − {row.second}",
            row.metric.label,
            difference(row),
            format_wins(row),
            *map(p_value, (row.t_test, row.holm, row.wilcoxon)),
            f"{row.least:.{row.metric.decimals}f}".replace("nan", "–"),
        ]
        for row in found.itertuples()
    ]
    tests = ["p, t-test", "Holm", "p, Wilcoxon", "least seen"]
    return ["pair", "score", "first − second [95 %]", "first better", *tests], rows


def difference(found: Any) -> str:
    """Return the mean difference with its 95 % interval, and the number of pairs if some lack."""
    lacking = "" if found.pairs == found.repeats else f" ({found.pairs} of {found.repeats} pairs)"
    return f"{found.metric.difference(found)}{lacking}"


def format_wins(found: Any) -> str:
    """Return the number of pairs in which the first side is better, and the number of ties.

    A dash stands for a score without a better direction.
    """
    if found.metric.lower_is_better is None:
        return "–"
    return f"{found.ahead} of {found.pairs}" + (f", {found.ties} equal" if found.ties else "")


def p_value(p: float) -> str:
    """Return a p-value; a dash if there was no test."""
    if p < 0.0005:
        return "<0.001"
    return f"{p:.3f}" if p == p else "–"


@dataclass(frozen=True, eq=False)
class Results:
    """The runs of one task.

    Parameters
    ----------
    folder : Path
        The results folder that they are from.
    table : DataFrame
        A row per run and round, as `read_table` returns them; the column `rule` has the method's
        name where it is not the barycentre.
    last : DataFrame
        A row per run, by n and method: its result, with `seconds` (median of a round), `duration`
        (seconds of the whole run), `condition` and `arm`, see `fedbary.study.arms.with_arms`.
    """

    folder: Path
    table: pd.DataFrame
    last: pd.DataFrame

    @classmethod
    def of(cls, table: pd.DataFrame, folder: Path) -> Results:
        """Return the results that rows of a table hold."""
        table = _scored(with_methods(table))
        if "split" in table:
            table = table.assign(split=table["split"].fillna(0).astype(int))
        last = result_rows(table).reset_index(drop=True).copy()
        last["order"] = [list(RULES).index(r) if r in RULES else len(RULES) for r in last["rule"]]
        trained = table[table["round"] > 0].groupby("run")["seconds"]
        last["seconds"] = last["run"].map(trained.median())
        last["duration"] = last["run"].map(table.groupby("run")["seconds"].sum())
        last = last.sort_values(["bayesian_layers", "order"], kind="stable")
        return cls(folder, table, with_arms(last))

    @property
    def by_split(self) -> bool:
        """True if runs repeat each other on several splits of the data."""
        return "split" in self.last and self.last["split"].nunique() > 1

    @property
    def repeats(self) -> str:
        """The repetitions that means are taken over, in words."""
        if not self.by_split:
            return f"the seeds ({listed_values(self.last['seed'])})"
        splits = f"the splits ({listed_values(self.last['split'])})"
        several = self.last["seed"].nunique() > 1
        return f"{splits} and seeds ({listed_values(self.last['seed'])})" if several else splits


def _scored(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose scores, for a server without data, are those on held-out examples."""
    bare = table["dataset"] == NO_DATA
    for column in [name for name in table if bare.any() and name.startswith(HELD_OUT + ".")]:
        score = column.removeprefix(HELD_OUT + ".")
        known = table[score] if score in table else pd.Series(math.nan, table.index)
        table = table.assign(**{score: known.mask(bare, table[column])})
    return table


def grouped(rows: pd.DataFrame, *keys: str) -> Iterable[tuple[Any, pd.DataFrame]]:
    """Yield the rows of each value of a column, or of each combination of several, in order."""
    for key, group in rows.groupby(list(keys), sort=False):
        yield (key[0] if len(keys) == 1 else key), group


def listed_values(values: pd.Series) -> str:
    """Return the different values of a column with commas between."""
    return ", ".join(str(value) for value in sorted(values.unique()))
