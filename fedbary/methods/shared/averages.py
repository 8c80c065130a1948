"""Weighted means of replies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedbary.methods.shared.method import Reply


def shares(replies: Sequence[Reply]) -> list[float]:
    """Return the replies' weights, divided by their sum."""
    total = sum(reply.weight for reply in replies)
    return [reply.weight / total for reply in replies]


def weighted_mean(replies: Sequence[Reply], names: Sequence[str]) -> dict[str, Tensor]:
    """Return Σ w_k θ_k of some tensors, in their dtypes; of integer ones the rounded mean."""
    means = {}
    weights = shares(replies)
    for name in names:
        like = replies[0].tensors[name]
        total = torch.zeros_like(like, dtype=torch.float64)
        for reply, weight in zip(replies, weights, strict=True):
            total.add_(reply.tensors[name].double(), alpha=weight)
        means[name] = (total if like.is_floating_point() else total.round()).to(like.dtype)
    return means
