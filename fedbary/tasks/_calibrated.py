"""Histograms of a task's held-out examples, and how often its sets or intervals hold the truth."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbary.data.tables import Layout
from fedbary.errors import SettingError
from fedbary.predictive import Forecast, Prediction
from fedbary.predictive.conformal import (
    BINS,
    HeldOut,
    Thresholds,
    counted,
    intervals_within,
    residual_bins,
    sets_within,
    true_class_bins,
    upper_edge,
    upper_odds,
)
from fedbary.predictive.risk import risk_histogram
from fedbary.settings.config import Settings
from fedbary.settings.task_words import OfClasses, OfGuarantees
from fedbary.tasks._values import Signature

ALL, CLASS = "all", "class"
"""Values of `conformal_by` that are no columns."""

NO_VALUE = "(no value)"
"""The group of rows without a level."""


def row_names(settings: Settings, signature: Signature) -> tuple[str, ...]:
    """Return what each row of a site's histogram of scores is of.

    Raises
    ------
    SettingError
        If it is to be a column that has no levels.
    """
    by = settings.of_task(OfGuarantees).conformal_by
    if by in (ALL, CLASS):
        return (ALL,) if by == ALL else signature.classes
    assert isinstance(signature, Layout)
    columns = dict(signature.columns)
    if not (levels := columns.get(by, ())):
        known = [ALL, *([CLASS] if signature.classes else []), *(c for c in columns if columns[c])]
        raise SettingError("conformal_by", by, f"{', '.join(known)}: a column needs levels")
    return (*levels, *((NO_VALUE,) if signature.missing != "refuse" else ()))


def groups(settings: Settings, signature: Signature, x: Tensor) -> Tensor | None:
    """Return the row of each input in its own units, (N,) int64; None where no column says it."""
    by = settings.of_task(OfGuarantees).conformal_by
    if by in (ALL, CLASS):
        return None
    assert isinstance(signature, Layout)
    start = 0
    for column, levels in signature.columns:
        if column == by:
            held = x[:, start : start + len(levels)]
            return torch.where(held.isnan().any(1), len(levels), held.nan_to_num().argmax(1))
        start += max(1, len(levels))
    raise AssertionError(by)


def held_out(
    settings: Settings, signature: Signature, predicted: Prediction | Forecast, x: Tensor, y: Tensor
) -> HeldOut:
    """Return the histograms of held-out examples.

    Parameters
    ----------
    settings, signature
        The run's.
    predicted, x, y
        Predictions, and inputs and targets (N,) in their own units.
    """
    if isinstance(predicted, Forecast):
        bins, risk = residual_bins(predicted, y), torch.zeros(0, BINS, dtype=torch.int64)
    else:
        bins = true_class_bins(settings.of_task(OfClasses).conformal_score, predicted.probs, y)
        risk = risk_histogram(predicted, y)
    by_class = settings.of_task(OfGuarantees).conformal_by == CLASS
    if (rows := groups(settings, signature, x)) is None:
        rows = y if by_class else torch.zeros_like(bins)
    height = len(row_names(settings, signature))
    return HeldOut(counted(bins, rows.to(bins.device), height), risk)


def hits_and_sizes(
    settings: Settings,
    bins: Tensor,
    predicted: Prediction | Forecast,
    y: Tensor,
    rows: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return whether each set or interval holds the truth, (N,) bool, and its size or width.

    Parameters
    ----------
    settings
        The run's.
    bins
        The threshold of each row.
    predicted, y, rows
        Predictions and targets (N,), in their own units, and the `groups` of the inputs.
    """
    if isinstance(predicted, Forecast):
        low, high = intervals_within(bins, predicted, rows)
        return (low <= y) & (y <= high), high - low
    sets = sets_within(
        bins, settings.of_task(OfClasses).conformal_score, predicted.probs, rows
    ).cpu()
    return sets.gather(1, y.cpu()[:, None])[:, 0], sets.sum(1)


def edges(settings: Settings, signature: Signature, found: Thresholds) -> dict[str, float]:
    """Return the largest score of each row by its name; of numbers the largest |y − mean|/std."""
    edge = upper_edge if signature.classes else upper_odds
    names = row_names(settings, signature)
    return dict(zip(names, map(edge, found.bins.tolist()), strict=True))


def risks(signature: Signature) -> int:
    """Return how many rows the histogram of uncertainties has."""
    return 2 if signature.classes else 0
