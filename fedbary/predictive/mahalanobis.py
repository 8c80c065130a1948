"""Distance of an input from every class, relative to all data: relative Mahalanobis distance.

Classes are Gaussians N(μ_c, Σ) of features φ with shares w_c. The background is the Gaussian with
their mixture's mean m and covariance Σ₀ = Σ + Σ_c w_c δ_c δ_cᵀ, δ_c = μ_c − m. The distance is

    min_c (φ − μ_c)ᵀ Σ⁻¹ (φ − μ_c) − (φ − m)ᵀ Σ₀⁻¹ (φ − m).

Σ₀ differs from Σ in the span of the δ_c alone. With u_c = δ_cᵀ Σ⁻¹ (φ − m) and G = δ Σ⁻¹ δᵀ it is

    min_c (G_cc − 2 u_c) + uᵀ (W⁻¹ + G)⁻¹ u,    W = diag(w),

This is a function of u alone, and u follows from linear discriminants of φ.

Reference: Ren et al., A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Background:
    """Distance from a network's logits, over the K classes that some client holds.

    Attributes
    ----------
    turn : Tensor
        (K, C), and
    shift : Tensor
        (K,), with u = turn · logits + shift.
    gram : Tensor
        G, (K, K).
    shares : Tensor
        w, (K,), above 0; they sum to 1.
    """

    turn: Tensor
    shift: Tensor
    gram: Tensor
    shares: Tensor

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Background | None:
        """Return the background of `tensors`; None without tensors."""
        return cls(**tensors) if tensors else None

    def tensors(self) -> dict[str, Tensor]:
        """Return the attributes by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def distance(self, logits: Tensor) -> Tensor:
        """Return the relative Mahalanobis distance (N,) of logits (N, C); larger is farther.

        It may be negative: near a class an input is less usual for the background.
        """
        u = logits.double() @ self.turn.to(logits.device).T + self.shift.to(logits.device)
        gram = self.gram.to(logits.device)
        inverse = torch.linalg.inv(torch.diag(1 / self.shares.to(logits.device)) + gram)
        nearest = (gram.diagonal() - 2 * u).amin(1)
        return nearest + ((u @ inverse) * u).sum(1)
