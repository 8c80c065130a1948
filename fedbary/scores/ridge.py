"""Ridge regression with a penalty chosen by leave-one-out: a linear model without settings.

With centred X (n, d) and Y (n, k), W = (XᵀX + λ)⁻¹ XᵀY. A left-out example has the residual (y_i −
ŷ_i)/(1 − h_i), h_i = 1/n + x_iᵀ (XᵀX + λ)⁻¹ x_i. λ minimises the sum of its squares, on a grid. The
eigenvectors are those of the smaller of XᵀX and XXᵀ.

A regression on class indicators masks a class that lies between two others: its answer is nowhere
the largest. A linear discriminant of the answers does not. Its means and pooled covariance are
those of the answers to left-out examples.

References: Golub, Heath and Wahba, Generalized Cross-Validation, Technometrics 1979; Hastie,
Tibshirani and Friedman, The Elements of Statistical Learning 2009, sections 4.2 and 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

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
    left_out : Tensor
        Answer to each training example by the model without it, (n, k).
    """

    weight: Tensor
    bias: Tensor
    left_out: Tensor


def discriminant(answers: Tensor, labels: Tensor) -> Linear:
    """Return the linear discriminant of classes (n,) from the answers to them (n, k).

    δ_c(a) = aᵀ S⁻¹ μ_c − ½ μ_cᵀ S⁻¹ μ_c + log π_c, with the pooled covariance S. A class without an
    example has −∞.
    """
    answers = answers.double()
    member = one_hot(labels.long(), answers.shape[1]).double()
    counts = member.sum(0)
    means = member.T @ answers / counts.clamp_min(1)[:, None]
    residuals = answers - means[labels.long()]
    pooled = residuals.T @ residuals / len(answers)
    weight = torch.linalg.pinv(pooled, rtol=SMALLEST, hermitian=True) @ means.T
    bias = (counts / counts.sum()).log() - (means * weight.T).sum(1) / 2
    return Linear(weight, bias, answers @ weight + bias)


def ridge(x: Tensor, y: Tensor) -> Linear:
    """Return the linear model of y (n, k) by x (n, d)."""
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
        mean_of_others = y_mean - y / max(len(y) - 1, 1)
        return Linear(x.new_zeros(x.shape[1], y.shape[1]), y_mean, mean_of_others)
    values, left = values[kept], left[:, kept]
    products = left.T @ y

    def residuals(penalty: float) -> Tensor:
        shrunk = values / (values + penalty)
        leverage = 1 / len(x) + left.square() @ shrunk
        of_all = y - left @ (shrunk[:, None] * products)
        return of_all / (1 - leverage).clamp_min(SMALLEST)[:, None]

    penalties = [float(values[-1]) * part for part in PENALTIES]
    penalty = min(penalties, key=lambda penalty: float(residuals(penalty).square().sum()))
    weight = x.T @ (left @ (products / (values + penalty)[:, None]))
    return Linear(weight, y_mean - x_mean @ weight, y + y_mean - residuals(penalty))
