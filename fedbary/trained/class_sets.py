"""Conformal sets of a run's predictions: as columns of a table, and their coverage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedbary.data.examples import Examples
from fedbary.scores.coverage import coverage
from fedbary.trained.judgement import groups
from fedbary.trained.run import Trained

BETWEEN = " | "
"""Separator of the classes of a set."""


def set_columns(trained: Trained, examples: Examples, level: float | None) -> dict[str, Any]:
    """Return each example's set and its size, by the names of their columns.

    Without a level they are the run's sets; a run that has none has no columns.
    """
    if trained.conformal is None and level is None:
        return {}
    found = trained.sets(examples, level)
    classes = np.array(trained.signature.classes, dtype=object)
    held = found.cpu().numpy()
    joined = [BETWEEN.join(map(str, classes[row])) for row in held]
    return {"set": np.array(joined, dtype=object), "set size": held.sum(1)}


def set_scores(
    sets: Tensor, examples: Examples, classes: Sequence[str], by: str | None = None
) -> dict[str, list[Any]]:
    """Score sets, in all, of each class and for each value of a column.

    Returns
    -------
    dict
        Columns: ``group``, ``examples`` and what `coverage` finds; the first row is of all.

    Raises
    ------
    SettingError
        As of `groups`.
    """
    assert examples.y is not None
    y = examples.y
    of_class = {f"class={name}": (y == k).nonzero()[:, 0] for k, name in enumerate(classes)}
    parts = groups(examples, None) | of_class | groups(examples, by)
    table: dict[str, list[Any]] = {"group": [], "examples": []}
    for name, index in parts.items():
        if not len(index):
            continue
        table["group"].append(name)
        table["examples"].append(len(index))
        for score, value in coverage(sets[index.to(sets.device)], y[index]).items():
            table.setdefault(score, []).append(value)
    return table
