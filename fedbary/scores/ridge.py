"""Ridge regression whose penalty leave-one-out chooses: a linear model without a setting.

With centred X (n, d) and Y (n, k), W = (XᵀX + λ)⁻¹ XᵀY. The residual of an example that is left out
is (y_i − ŷ_i)/(1 − h_i), with h_i = 1/n + x_iᵀ (XᵀX + λ)⁻¹ x_i. λ has the least sum of its squares,
on a grid. The eigenvectors are those of the smaller of XᵀX and XXᵀ.

Reference: Golub, Heath and Wahba, Generalized Cross-Validation, Technometrics 1979.
"""

from __future__ import annotations

import torch
from torch import Tensor

PENALTIES = tuple(10.0**exponent for exponent in range(-6, 2))
"""What λ may be, in the unit of the largest eigenvalue."""

SMALLEST = 1e-10
"""Eigenvalue, as a part of the largest, below which a direction counts as empty."""


def ridge(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight (d, k) and bias (k,) of the linear model of y (n, k) by x (n, d): float64."""
    x, y = x.double(), y.double()
    x_mean, y_mean = x.mean(0), y.mean(0)
    x, y = x - x_mean, y - y_mean
    if len(x) <= x.shape[1]:
        values, left = torch.linalg.eigh(x @ x.T)
    else:
        values, right = torch.linalg.eigh(x.T @ x)
        left = x @ right / values.clamp_min(SMALLEST * values[-1]).sqrt()
    kept = values > SMALLEST * values[-1]
    if not kept.any():
        return x.new_zeros(x.shape[1], y.shape[1]), y_mean
    values, left = values[kept], left[:, kept]
    products = left.T @ y

    def left_out(penalty: float) -> float:
        shrunk = values / (values + penalty)
        leverage = 1 / len(x) + left.square() @ shrunk
        residuals = y - left @ (shrunk[:, None] * products)
        return float((residuals / (1 - leverage).clamp_min(SMALLEST)[:, None]).square().sum())

    penalty = min((float(values[-1]) * part for part in PENALTIES), key=left_out)
    weight = x.T @ (left @ (products / (values + penalty)[:, None]))
    return weight, y_mean - x_mean @ weight
