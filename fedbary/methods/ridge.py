"""Ridge: least squares on the classes' indicators from clients' sums, in one round, exact.

A client sends what LDA's clients send. Features are centred at their mean m. A is their scatter,
and B (C, d) holds the sums of the indicators' products with them. The model is

    y_c = w_cᵀ (φ − m) + b_c + ε,    w_c ~ N(0, s²/λ),    ε ~ N(0, s²),    b_c free,

with a prior of s² that is worth one unexplained example. The result is W = B (A + λ)⁻¹, and b are
the classes' shares. λ is the value of a grid with the largest evidence:

    log p = −½ C Σ_i log (e_i + λ)/λ − ½ C n log Q + constant,
    Q = (1 + 1/n) Σ_ic y_ic² − Σ_i ‖B v_i‖²/(e_i + λ),

with e_i and v_i the eigenvalues and eigenvectors of A, y centred, and s² = Q/(C n).

The prediction is the class with the largest y_c. For two classes its probability is Φ((y_1 −
y_2)/(√2 s)). A softmax of 1.702 y_c/(√2 s) equals this within .01. These are the logits of the
linear layer that is the model.

It assumes that least squares separate the classes. `calibrate=temperature` corrects its
probabilities. One head predicts, so no epistemic uncertainty is known.

Messages: those of LDA, C + C d + d (d + 1)/2 numbers up, once. The server keeps them.

Cost: a client pays one pass and n d² products; the server some ten times d³.

Use it in place of LDA if labels are few: it needs the temperature less.

Reference: MacKay, Bayesian Interpolation, Neural Computation 1992.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.methods._method import Tensors
from fedbary.methods._sums import LastLayer
from fedbary.methods.lda import LDA
from fedbary.predictive.mahalanobis import Background

LAMBDAS = tuple(10 ** (step / 20) for step in range(-120, 21))
"""The values of λ that are tried, in the unit of the trace of A; smaller ones would be lost in the
rounding of the sums.
"""

PROBIT = 1.702 / math.sqrt(2)
"""A softmax of two scores times this is their probit, of unit noise, within .01."""


@dataclass(frozen=True)
class Ridge(LDA):
    """Least squares on the classes' indicators from clients' sums, with λ by evidence."""

    def head(self, count: float, means: Tensors, sites: int) -> LastLayer:
        """Return the scores' weights and biases, as logits."""
        counts, centres, within = self.moments(count, means, sites)
        mean = (counts[:, None] * centres).sum(0) / count
        between = counts.sqrt()[:, None] * (centres - mean)
        values, vectors = torch.linalg.eigh(within + between.T @ between)
        values = values.clamp_min(0)
        products = (counts[:, None] * (centres - mean)) @ vectors
        squares = float((counts - counts**2 / count).sum())
        scale, noise = best_ridge(values, products, squares, count)
        weight = products / (values + scale) @ vectors.T
        bias = counts / count - weight @ mean
        slope = PROBIT / noise
        return LastLayer(weight * slope, bias * slope, background(counts, between, weight, slope))


def background(counts: Tensor, between: Tensor, weight: Tensor, slope: float) -> Background:
    """Return the distance to the nearest class, where (A + λ)/n is the covariance of all.

    That within the classes is Σ = Σ₀ − Σ_c w_c δ_c δ_cᵀ. Logits of slope k are k (w_c v_c + w_c)
    with v_c = δ_cᵀ Σ₀⁻¹ (φ − m). Further, H = δ Σ₀⁻¹ δᵀ, and u = v + H (W⁻¹ − H)⁻¹ v.

    Parameters
    ----------
    counts, between : Tensor
        Examples n_c (C,) of each class, and √n_c δ_c (C, d).
    weight : Tensor
        n_c (A + λ)⁻¹ δ_c, (C, d).
    slope : float
        k.
    """
    held = counts > 0
    shares = counts[held] / counts.sum()
    gram = between[held] / counts[held].sqrt()[:, None] @ (weight[held] / shares[:, None]).T
    gram = (gram + gram.T) / 2
    turn = torch.linalg.inv(torch.eye(len(gram), dtype=torch.float64) - gram * shares)
    logits = torch.eye(len(counts), dtype=torch.float64)[held] / (slope * shares[:, None])
    return Background(turn @ logits, -turn.sum(1), turn @ gram, shares)


def best_ridge(
    values: Tensor, products: Tensor, squares: float, count: float
) -> tuple[float, float]:
    """Return λ and the noise's standard deviation s where the evidence is largest.

    Parameters
    ----------
    values : Tensor
        Eigenvalues (d,) of the features' scatter.
    products : Tensor
        Sums (C, d) of the centred targets' products with the features along the eigenvectors.
    squares : float
        The sum of the squares of the centred targets.
    count : float
        Number of examples that they are of.
    """
    degrees = count * len(products)
    unit = max(float(values.sum()), 1e-12)
    lambdas = unit * torch.tensor(LAMBDAS, dtype=torch.float64)[:, None]
    left = squares - (products.square().sum(0) / (values + lambdas)).sum(1)
    left = left.clamp_min(0) + max(squares, 1e-12) / count
    log_p = -len(products) / 2 * ((values + lambdas) / lambdas).log().sum(1)
    log_p -= degrees / 2 * left.log()
    best = int(log_p.argmax())
    return float(lambdas[best]), math.sqrt(float(left[best]) / degrees)
