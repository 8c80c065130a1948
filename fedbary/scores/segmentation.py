"""Overlap of predicted and true classes of pixels."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_iou(predicted: Tensor, labels: Tensor, classes: int) -> float:
    """Return the mean over the classes of intersection over union, TP / (TP + FP + FN).

    Pixels of all images count together. A class that is neither predicted nor true for any pixel is
    left out.

    Parameters
    ----------
    predicted, labels : Tensor
        Classes of pixels, int64 of one shape, at least one pixel.
    classes : int
        Number of classes.
    """
    both = torch.bincount(labels[predicted == labels].flatten(), minlength=classes).double()
    each = torch.bincount(torch.cat([predicted.flatten(), labels.flatten()]), minlength=classes)
    union = each - both
    return float((both / union)[union > 0].mean())
