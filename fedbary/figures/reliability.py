"""Reliability of a prediction: a picture for classes and one for numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedbary.figures.run_pictures import coverage_curve, reliability_diagram
from fedbary.predictive import Forecast, Prediction
from fedbary.scores import regression
from fedbary.scores.metrics import reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = np.linspace(0.01, 0.99, 99)
"""Central intervals whose coverage is drawn."""


def reliability_picture(
    prediction: Prediction | Forecast, y: Tensor, ece_bins: int = 15, title: str = ""
) -> Figure:
    """Draw confidence against accuracy; for numbers, the coverage of central intervals.

    Parameters
    ----------
    prediction, y, ece_bins
        As in `score`.
    title : str
        Heading.
    """
    if isinstance(prediction, Forecast):
        held = regression.coverage(
            prediction, y.to(prediction.mean.device), torch.from_numpy(LEVELS)
        )
        return coverage_curve(LEVELS, held.numpy(), title)
    diagram = reliability(prediction.probs, y.to(prediction.probs.device), ece_bins)
    return reliability_diagram(diagram, title)
