"""Distance of an input from every class, relative to all data: relative Mahalanobis distance.

Classes are Gaussians N(μ_c, Σ) of features φ with shares w_c. The background is one Gaussian of all
data: it has the mean m of the classes' mixture, and the covariance Σ₀ = Σ + Σ_c w_c δ_c δ_cᵀ with
δ_c = μ_c − m. The distance is

    min_c (φ − μ_c)ᵀ Σ⁻¹ (φ − μ_c) − (φ − m)ᵀ Σ₀⁻¹ (φ − m).

Σ₀ differs from Σ in the span of the δ_c alone. So the distance follows from the numbers
u_c = δ_cᵀ Σ⁻¹ (φ − m). With G = δ Σ⁻¹ δᵀ and W = diag(w) it is

    min_c (G_cc − 2 u_c) + uᵀ (W⁻¹ + G)⁻¹ u,

and u is a linear function of the logits of linear discriminants.

Reference: Ren et al., A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Background:
    """Distance from a network's logits, over the K classes of which a client holds examples.

    Attributes
    ----------
    turn : Tensor
        Matrix in u = turn · logits + shift, (K, C).
    shift : Tensor
        Vector in the same formula, (K,).
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
