"""Scores of a prediction of classes or of numbers, by any network."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.predictive import Forecast, Prediction
from fedbary.scores import regression, tables


def score(
    prediction: Prediction | Forecast, y: Tensor, ece_bins: int = 15, specificity: float = 0.95
) -> dict[str, float]:
    """Score a prediction of classes as `scores.tables.score` does, or one of numbers.

    Parameters
    ----------
    prediction
        Result of `predict`, `forecast`, or a run's `Trained.predict`.
    y : Tensor
        Classes (N,), int64; or numbers (N,), then as `scores.regression.score` does.
    ece_bins, specificity
        For classes alone.

    Returns
    -------
    dict
        Classes: accuracy, nll (nats), ece, brier, auroc and sensitivity. Numbers: nll, rmse,
        sharpness, crps and coverages.

    Raises
    ------
    SettingError
        If `y` is no tensor, or not of the prediction's classes.
    """
    if not isinstance(y, Tensor):
        raise SettingError("y", type(y).__name__, "a tensor (N,)")
    if isinstance(prediction, Forecast):
        return regression.score(prediction, y.to(prediction.mean.device))
    count = prediction.probs.shape[1]
    if y.dtype != torch.int64 or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < count):
        held = f"{y.dtype} from {y.min()} to {y.max()}" if len(y) else f"no {y.dtype}"
        raise SettingError("y", held, f"classes from 0 to {count - 1}, int64")
    return tables.score(prediction.probs, y.to(prediction.probs.device), ece_bins, specificity)
