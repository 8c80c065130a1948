"""Scores of Gaussian predictions of a number."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedbary.predictive import Forecast

LEVELS = (50, 90, 95)
"""Central intervals whose coverage is scored, in per cent."""

SCORES = ("nll", "rmse", "sharpness", "crps", *(f"coverage_{level}" for level in LEVELS))
"""Keys of the result of `score`."""


def score(forecast: Forecast, y: Tensor) -> dict[str, float]:
    """Score forecasts N(m, v) of targets y, in the units they are given in.

    - ``nll``: mean of ½ [log 2πv + (y − m)²/v], in nats; where v is 0 it is ∞, or −∞ if y = m;
    - ``rmse``: √ mean (y − m)², in the target's unit;
    - ``sharpness``: mean determinant sharpness det(Σ)^(1/2d), for one target √v, in its unit;
    - ``crps``: mean of √v [z (2Φ(z) − 1) + 2φ(z) − 1/√π], z = (y − m)/√v, in the target's unit;
    - ``coverage_50``, ``_90``, ``_95``: fraction of targets in the central interval of so many
      per cent.

    Parameters
    ----------
    forecast : Forecast
        Forecast of N examples, N at least 1.
    y : Tensor
        Targets, (N,).

    Raises
    ------
    ValueError
        The numbers of examples differ or are 0, or a mean or variance is not finite.

    References
    ----------
    Thorgeirsson and Gauterin, Entropy 2021, eq. 8 (sharpness); Gneiting and Raftery, Strictly
    Proper Scoring Rules, 2007, eq. 21 (CRPS).
    """
    mean, var, y = forecast.mean.double(), forecast.var.double(), y.double()
    if y.shape != mean.shape or not len(y):
        raise ValueError(f"one forecast a target; got {tuple(mean.shape)} and {tuple(y.shape)}")
    if not (mean.isfinite().all() and var.isfinite().all() and (var >= 0).all()):
        raise ValueError("forecasts must have finite means and finite variances from 0 up")
    std, error = var.sqrt(), y - mean
    z = error / std.clamp_min(torch.finfo(torch.float64).tiny)
    crps = error * torch.erf(z / math.sqrt(2)) - std / math.sqrt(math.pi)
    crps += std * math.sqrt(2 / math.pi) * torch.exp(-z.square() / 2)
    nll = 0.5 * (math.log(2 * math.pi) + 2 * std.log() + z.square())
    nll = nll.where(std > 0, torch.where(error == 0, -math.inf, math.inf))
    half_widths = {
        level: math.sqrt(2) * torch.erfinv(torch.tensor(level / 100)) for level in LEVELS
    }
    return {
        "nll": float(nll.mean()),
        "rmse": float(error.square().mean().sqrt()),
        "sharpness": float(std.mean()),
        "crps": float(crps.mean()),
        **{f"coverage_{k}": float((z.abs() <= w).double().mean()) for k, w in half_widths.items()},
    }


def coverage(forecast: Forecast, y: Tensor, levels: Tensor) -> Tensor:
    """Return the fraction of targets (N,) in the central interval of each probability, (L,)."""
    std = forecast.var.sqrt().double().clamp_min(torch.finfo(torch.float64).tiny)
    z = ((y - forecast.mean).abs() / std).double()
    half_widths = math.sqrt(2) * torch.erfinv(levels.to(z))
    return (z <= half_widths.unsqueeze(1)).double().mean(1)
