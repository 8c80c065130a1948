"""An experiment's runs of one task, as the sections of its report show them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.aggregation import RULES
from fedbary.runs.schema import HELD_OUT
from fedbary.settings.config import Settings
from fedbary.settings.owners import owned
from fedbary.study.grid import differing
from fedbary.study.table import result_rows, settings_of, with_methods

REPEATS = ("seed", "split")
"""Settings whose values are repetitions; means are taken over them."""

CONDITIONS = (
    "target", "columns", "leave_out", "classes", "test_dataset", "ood_dataset", "evaluate_on",
    "specificity", "train_fraction", "clients", "participation", "partition", "min_examples",
    "attack", "speeds",
)  # fmt: skip
"""Settings of the data and the federation, as are those that a partition or an attack owns.

Runs that differ in them answer different questions: they are not ranked with each other.
"""

DROPOUT = "MC dropout"
"""Name of plain averaging with predictions by dropout: a method of its own, no variant."""

NO_DATA = "none"
"""The data set of a server without data."""

DATASETS = {
    NO_DATA: "The sites' own data",
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
        A row per run, by n and method: its result, with `seconds` (median of a round), `duration`
        (seconds of the whole run) and three names. `condition` is its data set, with the settings
        of data and federation that differ. `arm` is its method, with the settings that differ
        between runs of this method, condition and n. `name` is its arm, with n if that differs.
    varied : set of str
        The settings in conditions and arms.
    """

    folder: Path
    table: pd.DataFrame
    last: pd.DataFrame
    varied: set[str]

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
        varied = _add_conditions(last) | _add_arms(last)
        return cls(folder, table, last, varied)

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


def conditions_of(last: pd.DataFrame) -> pd.DataFrame:
    """Return the settings of the data, but for its name, and of the federation, a row a run.

    What a run's partition or attack does not own is left out: the run does not use it.
    """
    found = {key: last[key] for key in CONDITIONS if key in last}
    for kind in (kind for kind in ("partition", "attack") if kind in last):
        parts = {name: owned(kind, name) for name in last[kind].dropna().unique()}
        for key in dict.fromkeys(itertools.chain(*parts.values())):
            if key in last:
                owners = {name for name, own in parts.items() if key in own}
                found[key] = last[key].where(last[kind].isin(owners))
    return pd.DataFrame(found)


def _add_conditions(last: pd.DataFrame) -> set[str]:
    """Add the column `condition`; return the settings in it."""
    last["condition"] = last["dataset"].map(written)
    known = conditions_of(last)
    differ = set()
    for _, rows in known.groupby(last["dataset"], sort=False):
        for key in (key for key in rows if rows[key].nunique() > 1):
            differ.add(key)
            words = rows[key].map(lambda value, key=key: f", {key}={plain(value)}")
            last.loc[rows.index, "condition"] += words.where(rows[key].notna(), "")
    return differ | {"dataset"}


def _add_arms(last: pd.DataFrame) -> set[str]:
    """Add the columns `arm` and `name`; return the settings in them."""
    by_dropout = last.get("predictive", pd.Series("", last.index)) == "dropout"
    last["arm"] = last["rule"].mask(by_dropout, DROPOUT)
    last["name"] = last["arm"]
    differ: set[str] = set()
    for _, rows in grouped(last[["condition", "arm"]].copy(), "condition", "arm"):
        runs = _settings(last.loc[rows.index])
        keys = [key for key in differing(runs) if key not in REPEATS]
        several = len({run["bayesian_layers"] for run in runs}) > 1
        for index, run in zip(rows.index, runs, strict=True):
            own = "".join(f", {key}={plain(run[key])}" for key in keys if key in run)
            layers = f", n = {run['bayesian_layers']}" if several else ""
            last.loc[index, "name"] += layers + own
            last.loc[index, "arm"] += own
        differ.update(keys)
    return differ


def _settings(last: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each run's settings; those of other runs' methods and models are left out."""
    runs = settings_of(last).astype(object).fillna("").to_dict("records")
    return [{k: v for k, v in run.items() if v != "" or k in Settings.model_fields} for run in runs]


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
