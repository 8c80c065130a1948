"""Structures: how the precision of a linear layer's weights is held, summed and solved with.

A layer's weights and bias are a matrix W (outputs, inputs + 1), and its input x̄ ends in a 1. The
matrix Λ_i is the Hessian of example i's loss with respect to the outputs. The Hessian with respect
to W is Σ Λ_i ⊗ x̄_i x̄_iᵀ, exactly. A structure keeps some sums of it, its *statistics*. The
statistics of two data sets add up.

    diagonal   Σ Λ_cc x̄_d²                                            c d numbers
    kronecker  (Σ Λ_i) ⊗ (Σ x̄ x̄ᵀ) / n                                 triangles of c and d, and n
    full       Σ Λ_i ⊗ x̄_i x̄_iᵀ                                       the triangle of c d
    shared     ½ (I − 1 1ᵀ/c) ⊗ Σ x̄ x̄ᵀ, of a softmax alone            the triangle of d

*Shared* is Böhning's upper bound on the Hessian of a softmax, for any W. Its size does not depend
on the number of classes. The bound makes a step of one model safe. It does not make the steps of
sites safe that expand at different W.

References: Böhning, Multinomial logistic regression algorithm, 1992; Grosse and Martens, 2016.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from fedbary.aggregation.covariance import packed, unpacked, with_ridge

Statistics = Mapping[str, Tensor]
"""Vectors by name, which add; in float64 where something is solved."""

ROUNDING = 1e-5
"""The part of the largest entry by which an eigenvalue may lie below 0, from rounding."""


@dataclass(frozen=True)
class Structure(ABC):
    """A structure of the precision of a layer's weights.

    Parameters
    ----------
    outputs, inputs : int
        The sides of W; the bias counts as an input.
    """

    outputs: int
    inputs: int

    softmax_alone: ClassVar[bool] = False
    """True: it bounds the curvature of a softmax, and is for no other loss."""

    undamped: ClassVar[bool] = False
    """True: sites take whole steps, as it holds all of the loss's curvature."""

    grows: ClassVar[bool] = True
    """False: what it says of old outputs depends on the number of all."""

    damping: ClassVar[float] = 0.3
    """Fraction of a step that sites take in a round if nothing else limits the step."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Return how many numbers each of the statistics has."""

    @abstractmethod
    def expand(self, features: Tensor, bent: Tensor) -> dict[str, Tensor]:
        """Return the statistics of examples.

        Parameters
        ----------
        features, bent : Tensor
            x̄, (n, inputs), and Λ, (n, outputs, outputs).
        """

    @abstractmethod
    def product(self, held: Statistics) -> Callable[[Tensor], Tensor]:
        """Return the map from W to the precision times W."""

    @abstractmethod
    def solve(self, held: Statistics, ridge: float) -> Callable[[Tensor], Tensor]:
        """Return the map from W to the inverse of the precision plus a ridge, above 0, times W."""

    @abstractmethod
    def root(self, held: Statistics, ridge: float) -> Callable[[Tensor], Tensor]:
        """Return the map R from W with R Rᵀ that inverse: from noise N(0, I) to N(0, R Rᵀ)."""

    def triangles(self) -> dict[str, int]:
        """Return the sides of those statistics that are triangles."""
        return {}

    def zeros(self) -> dict[str, Tensor]:
        """Return the statistics of no data, in float64."""
        return {name: torch.zeros(size, dtype=torch.float64) for name, size in self.sizes().items()}

    def fault(self, held: Statistics) -> str | None:
        """Say why statistics are those of no convex loss; None if they may be."""
        for name, tensor in held.items():
            if not tensor.isfinite().all():
                return f"{name}: numbers that are not finite"
            side = self.triangles().get(name)
            if side is None:
                if bool((tensor < 0).any()):
                    return f"{name}: numbers below 0"
                continue
            matrix = unpacked(tensor.double(), side)
            slack = ROUNDING * float(matrix.abs().max()) + torch.finfo(torch.float64).tiny
            matrix.diagonal().add_(slack)
            if torch.linalg.cholesky_ex(matrix).info != 0:
                return f"{name}: a matrix with eigenvalues below 0"
        return None


class Diagonal(Structure):
    """A number a weight."""

    def sizes(self) -> dict[str, int]:
        """Return c d."""
        return {"precision": self.outputs * self.inputs}

    def expand(self, features: Tensor, bent: Tensor) -> dict[str, Tensor]:
        """Return Σ Λ_cc x̄_d²."""
        return {"precision": (bent.diagonal(dim1=1, dim2=2).T @ features.square()).flatten()}

    def product(self, held: Statistics) -> Callable[[Tensor], Tensor]:
        """Multiply entry by entry."""
        return held["precision"].view(self.outputs, self.inputs).mul

    def solve(self, held: Statistics, ridge: float) -> Callable[[Tensor], Tensor]:
        """Divide entry by entry."""
        return (held["precision"].view(self.outputs, self.inputs) + ridge).reciprocal().mul

    def root(self, held: Statistics, ridge: float) -> Callable[[Tensor], Tensor]:
        """Divide entry by entry."""
        return (held["precision"].view(self.outputs, self.inputs) + ridge).rsqrt().mul


class Full(Structure):
    """All covariances."""

    undamped = True

    def sizes(self) -> dict[str, int]:
        """Return the triangle of c d."""
        side = self.outputs * self.inputs
        return {"precision": side * (side + 1) // 2}

    def triangles(self) -> dict[str, int]:
        """Return c d."""
        return {"precision": self.outputs * self.inputs}

    def expand(self, features: Tensor, bent: Tensor) -> dict[str, Tensor]:
        """Return Σ Λ_i ⊗ x̄_i x̄_iᵀ, a pair of outputs at a time."""
        shape = self.outputs, self.inputs, self.outputs, self.inputs
        found = features.new_empty(shape)
        for one in range(self.outputs):
            for other in range(one + 1):
                block = features.T @ (features * bent[:, one, other, None])
                found[one, :, other] = found[other, :, one] = block
        return {"precision": packed(found.reshape(self.outputs * self.inputs, -1))}

    def product(self, held: Statistics) -> Callable[[Tensor], Tensor]:
        """Multiply by the matrix."""
        matrix = unpacked(held["precision"], self.outputs * self.inputs)
        return lambda to: (matrix @ to.flatten()).view_as(to)

    def solve(self, held: Statistics, ridge: float) -> Callable[[Tensor], Tensor]:
        """Solve by a Cholesky factor."""
        factor = self._factor(held, ridge)
        return lambda to: torch.cholesky_solve(to.reshape(-1, 1), factor).view_as(to)

    def root(self, held: Statistics, ridge: float) -> Callable[[Tensor], Tensor]:
        """Solve by the transpose of a Cholesky factor."""
        above = self._factor(held, ridge).T
        solve = torch.linalg.solve_triangular
        return lambda to: solve(above, to.reshape(-1, 1), upper=True).view_as(to)

    def _factor(self, held: Statistics, ridge: float) -> Tensor:
        matrix = unpacked(held["precision"], self.outputs * self.inputs)
        return torch.linalg.cholesky(with_ridge(matrix, ridge))


class Kronecker(Structure):
    """A factor of the inputs and one of the outputs."""

    damping = 0.5

    def sizes(self) -> dict[str, int]:
        """Return the two triangles and n."""
        both = {name: side * (side + 1) // 2 for name, side in self.triangles().items()}
        return {**both, "examples": 1}

    def triangles(self) -> dict[str, int]:
        """Return d and c."""
        return {"inputs": self.inputs, "outputs": self.outputs}

    def expand(self, features: Tensor, bent: Tensor) -> dict[str, Tensor]:
        """Return Σ x̄ x̄ᵀ, Σ Λ and n."""
        of_inputs, of_outputs = features.T @ features, bent.sum(0)
        examples = features.new_full((1,), len(features))
        return {
            "inputs": packed(of_inputs),
            "outputs": packed(of_outputs),
            "examples": examples,
        }

    def product(self, held: Statistics) -> Callable[[Tensor], Tensor]:
        """Multiply from either side."""
        a, b = self._factors(held)
        return lambda to: b @ to @ a

    def solve(self, held: Statistics, ridge: float) -> Callable[[Tensor], Tensor]:
        """Divide in the eigenvectors of both factors; eigenvalues below 0 count as 0."""
        vectors, sides, values = self._eigen(held, ridge)
        return lambda to: sides @ ((sides.T @ to @ vectors) / values) @ vectors.T

    def root(self, held: Statistics, ridge: float) -> Callable[[Tensor], Tensor]:
        """Divide in the eigenvectors by the eigenvalues' roots."""
        vectors, sides, values = self._eigen(held, ridge)
        return lambda to: sides @ (to / values.sqrt()) @ vectors.T

    def _eigen(self, held: Statistics, ridge: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the eigenvectors of inputs and outputs, and the eigenvalues (outputs, inputs)."""
        a, b = self._factors(held)
        (values, vectors), (others, sides) = torch.linalg.eigh(a), torch.linalg.eigh(b)
        return vectors, sides, torch.outer(others.clamp_min(0), values.clamp_min(0)) + ridge

    def _factors(self, held: Statistics) -> tuple[Tensor, Tensor]:
        """Return A and B, of which the precision is B ⊗ A."""
        examples = held["examples"].clamp_min(torch.finfo(torch.float64).tiny)
        a = unpacked(held["inputs"], self.inputs)
        return a, unpacked(held["outputs"], self.outputs) / examples


class Shared(Kronecker):
    """One matrix of second moments for all classes, under Böhning's bound."""

    softmax_alone = True
    grows = False

    def sizes(self) -> dict[str, int]:
        """Return the triangle of d."""
        return {"inputs": self.inputs * (self.inputs + 1) // 2}

    def triangles(self) -> dict[str, int]:
        """Return d."""
        return {"inputs": self.inputs}

    def expand(self, features: Tensor, bent: Tensor) -> dict[str, Tensor]:
        """Return Σ x̄ x̄ᵀ."""
        return {"inputs": packed(features.T @ features)}

    def _factors(self, held: Statistics) -> tuple[Tensor, Tensor]:
        a = unpacked(held["inputs"], self.inputs)
        eye = torch.eye(self.outputs, dtype=a.dtype, device=a.device)
        return a, (eye - 1 / self.outputs) / 2


STRUCTURES: Mapping[str, type[Structure]] = MappingProxyType(
    {"diagonal": Diagonal, "kronecker": Kronecker, "full": Full, "shared": Shared}
)
"""Every structure by its name."""


@dataclass(frozen=True, eq=False)
class Quadratic:
    """A negative log-density ⟨slope, W − M⟩ + ½ ⟨W − M, (P + ridge) (W − M)⟩ of a layer's weights.

    Parameters
    ----------
    structure : Structure
        Structure that holds P.
    held : Statistics
        Those of P.
    ridge : float
        A precision that is added to that of every weight.
    slope, centre : Tensor
        (outputs, inputs); M is where the slope is taken.
    """

    structure: Structure
    held: Statistics
    ridge: float
    slope: Tensor
    centre: Tensor

    def energy(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return the map from W to the negative log-density, and its gradient (outputs, inputs)."""
        times = self.structure.product(self.held)

        def found(weights: Tensor) -> tuple[Tensor, Tensor]:
            away = weights - self.centre
            bent = times(away) + self.ridge * away
            return (away * (self.slope + bent / 2)).sum(), self.slope + bent

        return found
