"""The sums that clients of LDA and Ridge send, and the counts, means and scatter in them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedbary.methods._possible import scatter

SHARES, FEATURES, PRODUCTS = "sums/shares", "sums/features", "sums/products"
"""The keys of what a client sends, each a mean over its examples."""


def by_class(count: float, means: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts (C,), means (C, d), 0 for a class without examples, and the scatter (d, d).

    Raises
    ------
    ValueError
        If no examples have such sums.
    """
    shares, sums = means[SHARES].double(), sums_by_class(means)
    if shares.min() < 0 or abs(float(shares.sum()) - 1) > 1e-4:
        raise ValueError("the classes' shares are invalid")
    centres = torch.where(shares[:, None] > 0, sums / shares[:, None].clamp_min(1e-30), 0.0)
    within = scatter(means[PRODUCTS], sums.shape[1], centres.T @ sums)
    return count * shares, centres, count * within


def sums_by_class(means: Mapping[str, Tensor]) -> Tensor:
    """Return the features' sums by class as parts of the mean of all examples, (C, d)."""
    return means[FEATURES].double().view(len(means[SHARES]), -1)
