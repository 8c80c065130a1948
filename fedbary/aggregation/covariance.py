"""Barycentres of Gaussians with full covariances, of few weights: a linear model, a last layer.

The reverse-KL barycentre of N(m_k, C_k) with weights w_k, argmin_q Σ w_k KL(q ‖ p_k), is

    C⁻¹ = Σ w_k C_k⁻¹,      m = C Σ w_k C_k⁻¹ m_k      (BA-BFL, eq. 8),

The Wasserstein-2 barycentre argmin_q Σ w_k W₂²(q, p_k) has m = Σ w_k m_k and the only C with

    C = Σ w_k (C^½ C_k C^½)^½      (BA-BFL, eq. 10),

The iteration C ← C^-½ (Σ w_k (C^½ C_k C^½)^½)² C^-½ converges to it from any start. If covariances
commute, as diagonal ones do, the barycentres are the rules RKLB and WB.

Reference: Álvarez-Esteban et al., A fixed-point approach to barycenters in Wasserstein space, 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STEPS = 200
"""Largest number of steps to the fixed point; each brings the covariance nearer."""


def reverse_kl_barycentre(
    means: Tensor, covariances: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean (p,) and covariance (p, p) of the reverse-KL barycentre, in float64.

    Parameters
    ----------
    means, covariances, weights : Tensor
        (K, p), (K, p, p), positive definite, and (K,), which sum to 1.
    """
    weights = weights.double()
    precisions = torch.cholesky_inverse(torch.linalg.cholesky(covariances.double()))
    precision = torch.tensordot(weights, precisions, 1)
    shift = torch.einsum("k,kij,kj->i", weights, precisions, means.double())
    factor = torch.linalg.cholesky(precision)
    mean = torch.cholesky_solve(shift[:, None], factor)[:, 0]
    return mean, torch.cholesky_inverse(factor)


def wasserstein_barycentre(
    means: Tensor, covariances: Tensor, weights: Tensor, tolerance: float = 1e-9
) -> tuple[Tensor, Tensor]:
    """Return mean (p,) and covariance (p, p) of the Wasserstein-2 barycentre, in float64.

    A step takes K + 1 eigendecompositions, O(K p³). Some twenty to forty steps are needed if the
    covariances' eigenvalues lie decades apart.

    Parameters
    ----------
    means, covariances, weights : Tensor
        As for `reverse_kl_barycentre`.
    tolerance : float
        The iteration ends if a step changes the covariance by less than this, relatively.
    """
    weights, covariances = weights.double(), covariances.double()
    found = torch.tensordot(weights, covariances, 1)
    for _ in range(_STEPS):
        values, vectors = torch.linalg.eigh(found)
        root = (vectors * values.sqrt()) @ vectors.T
        inverse = (vectors / values.sqrt()) @ vectors.T
        middle = sum(
            weight * square_root(root @ covariance @ root)
            for weight, covariance in zip(weights, covariances, strict=True)
        )
        after = inverse @ middle @ middle @ inverse
        after = (after + after.T) / 2
        change = torch.linalg.norm(after - found) / torch.linalg.norm(after)
        found = after
        if change < tolerance:
            break
    return weights @ means.double(), found


def square_root(matrix: Tensor) -> Tensor:
    """Return the square root of a symmetric matrix, whose eigenvalues below 0 count as 0."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.T


def with_ridge(matrix: Tensor, ridge: float) -> Tensor:
    """Return a symmetric matrix plus a ridge, above 0, on its diagonal; it is positive definite.

    If an eigenvalue of the sum would be below half of the ridge, the matrix's eigenvalues below 0
    count as 0. Only then are eigenvalues computed, which takes some twenty times as long as the
    check.
    """
    half = matrix.clone()
    half.diagonal().add_(ridge / 2)
    if torch.linalg.cholesky_ex(half).info == 0:
        half.diagonal().add_(ridge / 2)
        return half
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * (values.clamp_min(0) + ridge)) @ vectors.T


def packed(matrix: Tensor) -> Tensor:
    """Return the lower triangle of a symmetric matrix (p, p) as a vector, p (p + 1)/2."""
    rows, columns = torch.tril_indices(*matrix.shape)
    return matrix[rows, columns]


def unpacked(triangle: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix (size, size) of a packed triangle."""
    matrix = triangle.new_zeros(size, size)
    rows, columns = torch.tril_indices(size, size)
    matrix[rows, columns] = triangle
    matrix[columns, rows] = triangle
    return matrix
