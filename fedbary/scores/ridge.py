"""Ridge regression with a penalty chosen by leave-one-out: a linear model without settings.

With centred X (n, d) and Y (n, k), W = (XᵀX + λ)⁻¹ XᵀY. A left-out example has the residual (y_i −
ŷ_i)/(1 − h_i), h_i = 1/n + x_iᵀ (XᵀX + λ)⁻¹ x_i. λ is the point of a grid that minimises the sum of
the squared residuals. Eigenvectors are computed of the smaller of XᵀX and XXᵀ.

Reference: Golub, Heath and Wahba, Generalized Cross-Validation, Technometrics 1979.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**exponent for exponent in range(-6, 2))
"""Grid of λ, in the unit of the largest eigenvalue."""

SMALLEST = 1e-10
"""Eigenvalue, as a fraction of the largest, below which a direction counts as empty."""


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear model.

    Attributes
    ----------
    weight, bias : Tensor
        W and b of the answer x W + b; (d, k) and (k,), float64.
    """

    weight: Tensor
    bias: Tensor


def spectrum(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared singular values of x (n, d) above 0 (r,), and left vectors (n, r)."""
    if len(x) <= x.shape[1]:
        values, left = torch.linalg.eigh(x @ x.T)
    else:
        values, right = torch.linalg.eigh(x.T @ x)
        left = x @ right / values.clamp_min(SMALLEST * values[-1]).sqrt()
    kept = values > SMALLEST * values[-1]
    return values[kept], left[:, kept]


def ridge(x: Tensor, y: Tensor) -> Linear:
    """Return the linear model of y (n, k) by x (n, d)."""
    x, y = x.double(), y.double()
    x_mean, y_mean = x.mean(0), y.mean(0)
    x, y = x - x_mean, y - y_mean
    values, left = spectrum(x)
    if not len(values):
        return Linear(x.new_zeros(x.shape[1], y.shape[1]), y_mean)
    products = left.T @ y

    def residuals(penalty: float) -> Tensor:
        shrunk = values / (values + penalty)
        leverage = 1 / len(x) + left.square() @ shrunk
        of_all = y - left @ (shrunk[:, None] * products)
        return of_all / (1 - leverage).clamp_min(SMALLEST)[:, None]

    penalties = [float(values[-1]) * part for part in PENALTIES]
    penalty = min(penalties, key=lambda penalty: float(residuals(penalty).square().sum()))
    weight = x.T @ (left @ (products / (values + penalty)[:, None]))
    return Linear(weight, y_mean - x_mean @ weight)
