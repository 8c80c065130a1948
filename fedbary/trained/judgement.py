"""Scores of a model on labelled examples of one's own, in all and group by group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedbary.data.examples import Examples
from fedbary.errors import SettingError
from fedbary.figures.run import rejection_curve
from fedbary.predictive import Prediction
from fedbary.scores.metrics import accuracy_after_rejection
from fedbary.trained.run import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_GROUPS = 50
"""Different values of a column above which it is taken for numbers or names and refused."""

REJECTED = tuple(part / 20 for part in range(19))
"""Fractions of the examples that are rejected, most uncertain first."""


def scores(
    trained: Trained, prediction: Any, examples: Examples, by: str | None = None
) -> dict[str, list[Any]]:
    """Score a prediction, in all and for each value of a column.

    Returns
    -------
    dict
        Columns: ``group``, ``examples`` and the scores; the first row is of all.

    Raises
    ------
    SettingError
        If there is no such column, or it has more than 50 values.
    """
    assert examples.y is not None
    rows = [("all", np.arange(len(examples.y)))]
    if by is not None:
        if by not in examples.columns:
            allowed = ", ".join(examples.columns) or "none: these examples have no columns"
            raise SettingError("by", by, allowed)
        values = np.array([str(value) for value in examples.columns[by]])
        groups = sorted(set(values.tolist()))
        if len(groups) > MOST_GROUPS:
            raise SettingError("by", by, f"a column of at most {MOST_GROUPS} different values")
        rows += [(f"{by}={group}", np.flatnonzero(values == group)) for group in groups]
    table: dict[str, list[Any]] = {"group": [], "examples": []}
    for name, places in rows:
        index = torch.from_numpy(places)
        held = {f.name: getattr(prediction, f.name) for f in fields(prediction)}
        part = replace(prediction, **{k: t[index.to(t.device)] for k, t in held.items()})
        found = trained.task.judged(part, examples.y[index])
        table["group"].append(name)
        table["examples"].append(len(places))
        for score, value in found.items():
            table.setdefault(score, []).append(value)
    return table


def pictures(trained: Trained, prediction: Any, examples: Examples) -> Iterator[tuple[str, Figure]]:
    """Yield the task's pictures, and of classes the accuracy after rejection."""
    assert examples.y is not None
    yield from trained.task.judgement(prediction, examples.y)
    if isinstance(prediction, Prediction):
        y = examples.y.to(prediction.probs.device)
        kept = accuracy_after_rejection(prediction.probs, y, prediction.entropy, REJECTED)
        yield "rejection", rejection_curve(REJECTED, kept)
