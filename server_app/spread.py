"""Spread of the clients' log-variances."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedbary.aggregation.sums import PIECE
from fedbary.gaussian import MEAN_SUFFIX, gaussian_pairs
from fedbary.methods import Tensors


def log_var_spread(clients: Sequence[Tensors]) -> dict[str, float]:
    """Return the spread of the clients' log-variances, per tensor, in nats.

    It is their standard deviation over the clients, averaged over the weights; empty without
    Gaussians or with one client.
    """
    if len(clients) < 2:
        return {}
    return {
        mean.removesuffix(MEAN_SUFFIX): _mean_std([each[key].reshape(-1) for each in clients])
        for mean, key in gaussian_pairs(clients[0].keys()).items()
        if clients[0][key].numel()
    }


def _mean_std(clients: Sequence[Tensor]) -> float:
    """Return the clients' standard deviation, averaged over weights, computed in pieces."""
    pieces = zip(*(values.split(PIECE) for values in clients), strict=True)
    total = sum(float(torch.stack(piece).std(0).sum()) for piece in pieces)
    return total / clients[0].numel()
