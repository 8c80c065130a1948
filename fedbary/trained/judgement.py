"""Scores of a model on a user's own labelled examples, in all and group by group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedbary.data.examples import Examples
from fedbary.errors import SettingError
from fedbary.figures.run_pictures import rejection_curve
from fedbary.predictive import Prediction
from fedbary.scores.metrics import accuracy_after_rejection
from fedbary.texts import cut
from fedbary.trained.run import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_GROUPS = 50
"""Most different values of a column of groups; one with more is refused as numbers or names."""

LONGEST_ENDING = 60
"""Characters of a group in a line, in a picture and in its name."""

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
    table: dict[str, list[Any]] = {"group": [], "examples": []}
    for name, index in groups(examples, by).items():
        found = trained.task.judged(_part(prediction, index), examples.y[index])
        table["group"].append(name)
        table["examples"].append(len(index))
        for score, value in found.items():
            table.setdefault(score, []).append(value)
    return table


def groups(examples: Examples, by: str | None) -> dict[str, Tensor]:
    """Return the places of all examples, and of those of each value of a column.

    A value that is a long text is cut, so that it fits into a line and a picture.

    Raises
    ------
    SettingError
        As in `scores`.
    """
    found = {"all": torch.arange(len(examples.names))}
    if by is None:
        return found
    if by not in examples.columns:
        allowed = ", ".join(examples.columns) or "none: these examples have no columns"
        raise SettingError("by", by, allowed)
    values = np.array([str(value) for value in examples.columns[by]], dtype=object)
    names = sorted(set(values.tolist()))
    if len(names) > MOST_GROUPS:
        raise SettingError("by", by, f"a column of at most {MOST_GROUPS} different values")
    for number, name in enumerate(names, 1):
        group = cut(f"{by}={name}", LONGEST_ENDING)
        group = f"{group} ({number})" if group in found else group
        found[group] = torch.from_numpy(np.flatnonzero(values == name))
    return found


def pictures(
    trained: Trained, prediction: Any, examples: Examples, by: str | None = None
) -> Iterator[tuple[str, Figure]]:
    """Yield the task's pictures, for all and for each group, and the rejection curve."""
    assert examples.y is not None
    curves, parts = {}, groups(examples, by)
    for (name, index), ending in zip(parts.items(), _endings(parts), strict=True):
        part, y = _part(prediction, index), examples.y[index]
        for kind, figure in trained.task.judgement(part, y):
            if ending:
                figure.suptitle(name, fontsize=9, parse_math=False)
            yield f"{kind}{ending}", figure
        curves[name] = _after_rejection(part, y)
    unit = "Accuracy on the rest (%)" if isinstance(prediction, Prediction) else "RMSE on the rest"
    yield "rejection", rejection_curve(REJECTED, curves, unit)


def _endings(groups: Iterable[str]) -> list[str]:
    """Return the endings of the pictures' names: empty for all, ``-sex=f`` for a group.

    Characters that no file name should hold become a dash. If two names are then alike, capital or
    small letters, the second gets a number.
    """
    endings = [""]
    for number, group in enumerate(list(groups)[1:], 1):
        name = re.sub(r"[^\w.=]+", "-", group)[:LONGEST_ENDING].strip("-.")
        alike = f"-{name}".casefold() in (ending.casefold() for ending in endings)
        endings.append(f"-{name}-{number}" if alike else f"-{name}")
    return endings


def _part(prediction: Any, index: Tensor) -> Any:
    held = {f.name: getattr(prediction, f.name) for f in fields(prediction)}
    told = {name: tensor for name, tensor in held.items() if isinstance(tensor, Tensor)}
    return replace(prediction, **{k: t[index.to(t.device)] for k, t in told.items()})


def _after_rejection(prediction: Any, y: Tensor) -> list[float]:
    """Return the accuracy in per cent, or the RMSE, on the kept examples at each of `REJECTED`."""
    if isinstance(prediction, Prediction):
        y, prediction = y.to(prediction.probs.device).flatten(), prediction.one_by_one()
        kept = accuracy_after_rejection(prediction.probs, y, prediction.entropy, REJECTED)
        return [100 * accuracy for accuracy in kept]
    order = prediction.var.argsort(stable=True)
    squares = (prediction.mean - y.to(prediction.mean.device)).square()[order].double().cumsum(0)
    counts = [max(1, round(len(y) * (1 - fraction))) for fraction in REJECTED]
    return [float((squares[count - 1] / count).sqrt()) for count in counts]
