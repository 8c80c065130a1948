"""Scores of a model on a user's own labelled examples, and its conformal sets of them, by group."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from fedbary.data.examples import Examples
from fedbary.errors import SettingError
from fedbary.predictive import Prediction
from fedbary.predictive.conformal import Thresholds, interval
from fedbary.scores.coverage import coverage
from fedbary.scores.intervals import NONE, bootstrap, of_auroc
from fedbary.tasks import Task, hits_and_sizes
from fedbary.tasks import groups as rows_of
from fedbary.texts import cut
from fedbary.trained.run import Trained

CONFIDENCE = 0.95
"""Confidence of the upper bound beside an error rate."""


@dataclass(frozen=True)
class Referral:
    """A threshold on the total uncertainty, and its effect on the examples it was chosen on.

    Parameters
    ----------
    threshold : float
        In nats; cases above it go to a person. −1: all do.
    kept : float
        Fraction of the examples at or below the threshold.
    error : float
        Fraction of the kept examples that are wrong; NaN if none is kept.
    bound : float
        The upper end of the one-sided 95 % Clopper-Pearson interval of that error.
    """

    threshold: float
    kept: float
    error: float
    bound: float

    def to_person(self, prediction: Prediction) -> np.ndarray:
        """Return the mask of the predictions that go to a person, (N,) bool."""
        return (prediction.entropy.double().cpu().numpy() > self.threshold).astype(bool)


def referral(prediction: Prediction, y: Tensor, error_rate: float) -> Referral:
    """Choose the largest threshold whose kept predictions have at most this error rate.

    Examples are sorted by the entropy of their prediction. The threshold is the largest one whose
    kept examples have an error of at most `error_rate`. The examples must not have been trained on.

    Parameters
    ----------
    prediction
        Prediction of held-out examples.
    y
        Their classes (N,).
    error_rate
        Largest fraction of wrong predictions among the kept ones, from 0 to below 1.

    Raises
    ------
    SettingError
        If the error rate is out of its range, or examples have several classes.
    """
    if not 0 <= error_rate < 1:
        raise SettingError("error_rate", error_rate, "from 0 to below 1")
    if prediction.probs.ndim > 2:
        why = "none: an example of this task has several classes, right and wrong ones"
        raise SettingError("error_rate", error_rate, why)
    entropy = prediction.entropy.double().cpu().numpy()
    wrong = (prediction.probs.argmax(1).cpu() != y.cpu()).numpy()
    order = np.argsort(entropy, kind="stable")
    errors = np.cumsum(wrong[order])
    counts = np.arange(1, len(order) + 1)
    last_of_ties = np.append(np.diff(entropy[order]) > 0, True)
    allowed = np.flatnonzero(last_of_ties & (errors <= error_rate * counts))
    if not len(allowed):
        return Referral(-1.0, 0.0, float("nan"), 1.0)
    place = allowed[-1]
    count, failed = int(counts[place]), int(errors[place])
    bound = 1.0 if failed == count else float(betaincinv(failed + 1, count - failed, CONFIDENCE))
    return Referral(float(entropy[order][place]), count / len(order), failed / count, bound)


MOST_GROUPS = 50
"""Most different values of a column of groups; one with more is refused as numbers or names."""

LONGEST_GROUP = 60
"""Characters of a group in a line."""


def scores(
    trained: Trained, prediction: Any, examples: Examples, by: str | None = None
) -> dict[str, list[Any]]:
    """Score a prediction, in all and for each value of a column, with 95 % intervals.

    It warns of classes that a mean leaves out.

    Returns
    -------
    dict
        Columns: ``group``, ``examples``, of two classes ``positives``, which are of the second, and
        the scores, each with its ``_low`` and its ``_high``; the first row is of all. Examples that
        may not be independent have no intervals.

    Raises
    ------
    SettingError
        If there is no such column, or it has more than 50 values.
    """
    assert examples.y is not None
    table: dict[str, list[Any]] = {"group": [], "examples": []}
    units, known = units_of(examples), not trained.doubt(examples)
    for name, index in groups(examples, by).items():
        part = _part(prediction, examples.y, index)
        if gone := trained.task.left_out(*part):
            warnings.warn(f"{name}: {gone}", stacklevel=2)
        found = judged(trained.task, {"": part[0]}, part[1], units[index], known)[""]
        table["group"].append(name)
        table["examples"].append(len(index))
        if examples.y.ndim == 1 and len(trained.signature.classes) == 2:
            table.setdefault("positives", []).append(int(examples.y[index].sum()))
        for score, (value, low, high) in found.items():
            for ending, number in (("", value), ("_low", low), ("_high", high)):
                table.setdefault(f"{score}{ending}", []).append(number)
    return table


Judged = tuple[float, float, float]
"""A score, and the ends of its 95 % interval; NaN where there is none."""


def judged(
    task: Task, predictions: Mapping[str, Any], y: Tensor, units: Tensor, known: bool = True
) -> dict[str, dict[str, Judged]]:
    """Score predictions of the same examples, with 95 % intervals.

    Where each example stands alone, the interval of an accuracy or a coverage is Clopper and
    Pearson's, and for two classes an AUROC's is Newcombe's, see `of_auroc`. Others are those of
    `bootstrap`; where it finds none for a sensitivity, such as one of 0, it is Clopper and
    Pearson's. The draws are the same for all predictions: after the first prediction, each further
    one has its difference too, ``first − other``.

    Parameters
    ----------
    task
        What scores.
    predictions
        Predictions of the examples, by a name.
    y, units
        Targets, and the group of each example (N,), see `units_of`.
    known
        True: the groups are independent. Else there are no intervals.
    """
    first = next(iter(predictions))

    def scored(index: Tensor) -> dict[tuple[str, str], float]:
        found = {n: task.judged(*_part(held, y, index)) for n, held in predictions.items()}
        apart = {
            f"{first} − {n}": {k: found[first][k] - v for k, v in other.items()}
            for n, other in found.items()
            if n != first
        }
        return {(n, k): v for n, one in (found | apart).items() for k, v in one.items()}

    whole = scored(torch.arange(len(units)))
    ends = bootstrap(scored, units) if known else dict.fromkeys(whole, NONE)
    alone = len(units.unique()) == len(units)
    table: dict[str, dict[str, Judged]] = {}
    for (name, score), value in whole.items():
        held = ends[name, score]
        if name in predictions and y.ndim == 1 and known and alone:
            if score == "accuracy" or score.startswith("coverage_"):
                held = interval(round(value * len(y)), len(y))
            elif score in ("auroc", "sensitivity") and predictions[name].probs.shape[1] == 2:
                events, others = int((y == 1).sum()), int((y == 0).sum())
                if score == "auroc":
                    held = of_auroc(value, [(events, others)])
                elif math.isnan(held[0]) and math.isfinite(value):
                    held = interval(round(value * events), events)
        table.setdefault(name, {})[score] = (value, *held)
    return table


def units_of(examples: Examples) -> Tensor:
    """Return the group of each example (N,); different numbers where each stands alone."""
    return torch.arange(len(examples.x)) if examples.groups is None else examples.groups


def groups(examples: Examples, by: str | None) -> dict[str, Tensor]:
    """Return the places of all examples, and of those of each value of a column.

    A value that is a long text is cut, so that it fits into a line.

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
        group = cut(f"{by}={name}", LONGEST_GROUP)
        group = f"{group} ({number})" if group in found else group
        found[group] = torch.from_numpy(np.flatnonzero(values == name))
    return found


def _part(prediction: Any, y: Tensor, index: Tensor) -> tuple[Any, Tensor]:
    """Return the prediction and the targets at some places, both on the prediction's device."""
    held = {f.name: getattr(prediction, f.name) for f in fields(prediction)}
    told = {name: tensor for name, tensor in held.items() if isinstance(tensor, Tensor)}
    device = next(iter(told.values())).device
    index, y = index.to(device), y.to(device)
    return replace(prediction, **{name: tensor[index] for name, tensor in told.items()}), y[index]


# Conformal sets and intervals

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

    One example of each group counts. Examples that may not be independent have no intervals.

    Returns
    -------
    dict
        Columns: ``group``, ``examples`` and what `coverage` finds; the first row is of all.
    hits, sizes : Tensor
        Whether each holds the truth, and its size, (n,) for the n examples that count.

    Raises
    ------
    SettingError
        As in `groups`.
    """
    is_known = not trained.doubt(examples)
    examples = examples.independent()
    assert (y := examples.y) is not None
    signature, settings = trained.signature, trained.settings
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
        scored = coverage(hits[index], sizes[index], called, is_known)
        for score, value in scored.items():
            table.setdefault(score, []).append(value)
    return table, hits, sizes


def _places(mask: Tensor) -> Tensor:
    return torch.nonzero(mask)[:, 0]
