"""What is compared with what: a run's condition, and its arm within it.

Runs of one condition answer one question; runs of one arm repeat each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedbary.settings.config import Settings, bookkeeping
from fedbary.settings.owners import methods, owned

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

BUDGET = ("rounds", "local_epochs")
"""Settings of what a run may cost: conditions too where runs of one method differ in them.

Methods of one round stand beside those of more.
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


def with_arms(last: pd.DataFrame) -> pd.DataFrame:
    """Return a row a run with columns `condition` and `arm`.

    A condition is the data set, with the settings of data and federation in which its runs differ.
    An arm is the method, with the settings that tell it from the method's other arms, see
    `told_apart`. Runs that differ in seed or split alone are of one arm.
    """
    last = with_methods(last)
    last = last.assign(condition=_named_conditions(last))
    by_dropout = last.get("predictive", pd.Series("", last.index)) == "dropout"
    last["arm"] = last["rule"].mask(by_dropout, DROPOUT)
    for _, rows in last.groupby(["condition", "arm"], sort=False):
        runs = _settings(rows)
        last.loc[rows.index, "arm"] += [
            "".join(f", {_word(key)}{plain(run[key])}" for key in told)
            for run, told in zip(runs, told_apart(runs), strict=True)
        ]
    return last


def told_apart(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return for each run the settings that tell it from the others.

    These are the settings in which it differs from its neighbours. Another run is a neighbour if
    no third one differs from the first in a part of its differences. A setting that one of two
    runs lacks is no difference: it follows from another one. So names differ wherever runs do.
    """
    found = []
    for run in runs:
        apart = {
            frozenset(key for key in run if key in other and other[key] != run[key])
            for other in runs
        } - {frozenset()}
        nearest = [one for one in apart if not any(less < one for less in apart)]
        found.append([key for key in run if any(key in one for one in nearest)])
    return found


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
    for key in (key for key in BUDGET if key in last):
        if last[key].groupby([last["rule"], last["dataset"]]).nunique().max() > 1:
            found[key] = last[key]
    return pd.DataFrame(found)


def _named_conditions(last: pd.DataFrame) -> pd.Series:
    named = last["dataset"].map(written)
    known = conditions_of(last)
    for _, rows in known.groupby(last["dataset"], sort=False):
        for key in (key for key in rows if rows[key].nunique() > 1):
            words = rows[key].map(lambda value, key=key: f", {key}={plain(value)}")
            named[rows.index] += words.where(rows[key].notna(), "")
    return named


def _settings(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each run's settings in which any differ, but for repeats; none of other methods'."""
    settings = settings_of(rows).astype(object)
    for key in (key for key in settings if key in Settings.model_fields):
        settings[key] = settings[key].where(settings[key].notna(), "none")
    differ = [key for key in differing(settings) if key not in REPEATS]
    return [dict(run.dropna()) for _, run in settings[differ].iterrows()]


def differing(settings: pd.DataFrame) -> list[str]:
    """Return the columns in which runs differ, but for bookkeeping."""
    kept = [key for key in settings if key not in bookkeeping()]
    return [key for key in kept if settings[key].astype(object).nunique() > 1]


def _word(key: str) -> str:
    return "n = " if key == "bayesian_layers" else f"{key}="


def written(dataset: object) -> str:
    """Return how a data set is written."""
    return DATASETS.get(str(dataset), str(dataset))


def plain(value: object) -> str:
    """Return a value of a table as text."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return the settings' columns of a table: those of all runs, then those of methods and models.

    The latter are the other columns from `run` to `commit`.
    """
    columns = list(table)
    upto = columns.index("commit") if "commit" in columns else 0
    own = [name for name in columns[:upto] if name not in ("format", "run")]
    return table[[name for name in dict.fromkeys([*Settings.model_fields, *own]) if name in table]]


def with_methods(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose column `rule` has the names of methods that are not called by a rule."""
    method = table["method"]
    by_rule = [name for name, file in methods().items() if file.called_by == "rule"]
    if "rule" not in table:
        table = table.copy()
        table.insert(table.columns.get_loc("method"), "rule", method)
    return table.assign(rule=table["rule"].where(method.isin(by_rule), method))
