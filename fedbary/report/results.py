"""An experiment's runs of one task, as the sections of its report show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.aggregation import RULES
from fedbary.settings.config import Settings
from fedbary.study.grid import differing
from fedbary.study.table import result_rows, settings_of, with_methods

REPEATS = ("seed", "split")
"""Settings whose values are repetitions; means are taken over them."""

DATASETS = {
    "fashionmnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "svhn": "SVHN",
    "digits": "Digits",
    "breast_cancer": "Breast cancer",
}
"""Spelling of data sets; others are written as they are named."""


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
        A row per run, by n and rule: its result, with `seconds` (median of a round), `duration`
        (seconds of the whole run) and `variant`.
    varied : list of str
        Settings that differ between runs of one data set, rule and n. Their values are a run's
        variant.
    """

    folder: Path
    table: pd.DataFrame
    last: pd.DataFrame
    varied: list[str]

    @classmethod
    def of(cls, table: pd.DataFrame, folder: Path) -> Results:
        """Return the results that rows of a table hold; early versions' runs are of split 0."""
        table = with_methods(table)
        if "split" in table:
            table = table.assign(split=table["split"].fillna(0).astype(int))
        last = result_rows(table).copy()
        last["order"] = [list(RULES).index(r) if r in RULES else len(RULES) for r in last["rule"]]
        trained = table[table["round"] > 0].groupby("run")["seconds"]
        last["seconds"] = last["run"].map(trained.median())
        last["duration"] = last["run"].map(table.groupby("run")["seconds"].sum())
        settings = _settings(last)
        varied = [key for key in differing(settings) if key not in REPEATS]
        last["variant"] = [
            ", ".join(f"{key}={plain(run[key])}" for key in varied if key in run)
            for run in settings
        ]
        return cls(
            folder, table, last.sort_values(["bayesian_layers", "order"], kind="stable"), varied
        )

    @property
    def of_rules(self) -> Results:
        """The runs whose server takes the aggregate by a rule; those of other methods left out."""
        return replace(self, last=self.last[self.last["rule"].isin(RULES)])

    @property
    def variant_header(self) -> list[str]:
        """The heading of the column of variants; empty if there are no variants."""
        return [", ".join(self.varied)] if self.varied else []

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


def _settings(last: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each run's settings; those of other runs' methods and models are left out."""
    runs = settings_of(last).astype(object).fillna("").to_dict("records")
    return [{k: v for k, v in run.items() if v != "" or k in Settings.model_fields} for run in runs]


def repeat(rows: pd.DataFrame) -> pd.Series:
    """Return the number of each row's repetition, the same for rows alike in `REPEATS`."""
    return rows.groupby([key for key in REPEATS if key in rows], dropna=False).ngroup()


def grouped(rows: pd.DataFrame, *keys: str) -> Iterable[tuple[Any, pd.DataFrame]]:
    """Yield the rows of each value of a column, or of each combination of several, in order."""
    for key, group in rows.groupby(list(keys), sort=False):
        yield (key[0] if len(keys) == 1 else key), group


def written(dataset: object) -> str:
    """Return how a data set is written."""
    return DATASETS.get(str(dataset), str(dataset))


def plain(value: object) -> str:
    """Return a value of a table as text."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def listed_values(values: pd.Series) -> str:
    """Return the different values of a column with commas between."""
    return ", ".join(str(value) for value in sorted(values.unique()))


def scored_after(last: pd.DataFrame) -> str:
    """Return the round whose models are scored, by the runs' `keep_best`."""
    known = last["keep_best"].astype(object) if "keep_best" in last else pd.Series(["none"])
    kept = known.fillna("none").unique()
    return " or ".join(
        "after the last round"
        if score == "none"
        else f"after the round that is best by {score} on validation data"
        for score in kept
    )


def scored_on(last: pd.DataFrame, names: dict[str, str]) -> str:
    """Return the data that runs are scored on, by the names of the values of `evaluate_on`."""
    return " or ".join(names[held] for held in last["evaluate_on"].unique())
