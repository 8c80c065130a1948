"""Conformal sets and intervals of a run: as columns of a table, and how often they are right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbary.data.examples import Examples
from fedbary.parts.parameters import told
from fedbary.predictive.conformal import Thresholds
from fedbary.scores.coverage import coverage
from fedbary.settings.task_words import OfGuarantees
from fedbary.tasks import groups as rows_of
from fedbary.tasks import hits_and_sizes, row_names
from fedbary.trained.judgement import groups
from fedbary.trained.run import Trained

BETWEEN = " | "
"""Separator of the classes of a set."""


def set_columns(
    trained: Trained, examples: Examples, level: float | None, site: str | None
) -> dict[str, Any]:
    """Return each example's set and its size, or the ends of its interval, by their columns' names.

    Level and site are by default the run's; a run without sets or intervals has no columns.
    """
    if not trained.sites and level is None and site is None:
        return {}
    if not (classes := np.array(trained.signature.classes, dtype=object)).size:
        low, high = trained.intervals(examples, level, site)
        return {"low": low.numpy(), "high": high.numpy()}
    held = trained.sets(examples, level, site).cpu().numpy()
    joined = [BETWEEN.join(map(str, classes[row])) for row in held]
    return {"set": np.array(joined, dtype=object), "set size": held.sum(1)}


def set_scores(
    trained: Trained, examples: Examples, by: Thresholds, column: str | None = None
) -> tuple[dict[str, list[Any]], Tensor, Tensor]:
    """Score sets or intervals: of all examples, of each class, and for each value of a column.

    Returns
    -------
    dict
        Columns: ``group``, ``examples`` and what `coverage` finds; the first row is of all.
    hits, sizes : Tensor
        Whether each holds the truth, and its size, (N,).

    Raises
    ------
    SettingError
        As in `groups`.
    """
    assert examples.y is not None
    y, signature, settings = examples.y, trained.signature, trained.settings
    rows = rows_of(settings, signature, examples.x)
    predicted = trained.scored_by_sites(examples)
    hits, sizes = hits_and_sizes(settings, by.bins, predicted, y, rows)
    of_class = {f"class={name}": _places(y == k) for k, name in enumerate(signature.classes)}
    parts = groups(examples, None) | of_class | groups(examples, column)
    called = "set_size" if signature.classes else "width"
    table: dict[str, list[Any]] = {"group": [], "examples": []}
    for name, index in parts.items():
        if not len(index):
            continue
        table["group"].append(name)
        table["examples"].append(len(index))
        for score, value in coverage(hits[index], sizes[index], called).items():
            table.setdefault(score, []).append(value)
    return table, hits, sizes


def lacking(trained: Trained, level: float | None, site: str) -> Iterator[str]:
    """Yield a line where a site has too few examples for thresholds of its own."""
    found = trained.thresholds(level)
    names = row_names(trained.settings, trained.signature)
    own = Thresholds(found.level, trained.sites[site].scores)
    if told(OfGuarantees, trained.settings).conformal_by != "class" and own.short:
        short = ", ".join(names[row] for row in own.short)
        yield f"{site} holds out too few examples for thresholds of its own: {short}"


def _places(mask: Tensor) -> Tensor:
    return torch.nonzero(mask)[:, 0]
