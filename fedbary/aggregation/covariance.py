"""Gaussians with full covariances: barycentres, structures of a last layer, new outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

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


def with_outputs(held: Statistics, old: Structure, places: Sequence[int]) -> dict[str, Tensor]:
    """Return an old structure's statistics for the outputs of `places`, in their order.

    Parameters
    ----------
    held
        Its statistics, and perhaps vectors (outputs · inputs,) of other names, such as slopes.
    old
        The structure; one that `grows`.
    places
        For each output its place among the old ones, −1 for a new one.
    """
    assert old.grows
    new = type(old)(len(places), old.inputs)
    return {name: _laid_out(t, old, new, name, places) for name, t in held.items()}


def _laid_out(
    tensor: Tensor, old: Structure, new: Structure, name: str, places: Sequence[int]
) -> Tensor:
    after = new.sizes().get(name, new.outputs * new.inputs)
    if len(tensor) == after:
        return tensor
    there = torch.tensor([place >= 0 for place in places])
    rows = [place for place in places if place >= 0]
    if (side := old.triangles().get(name)) is None:
        vectors = tensor.new_zeros(new.outputs, after // new.outputs)
        vectors[there] = tensor.view(old.outputs, -1)[rows]
        return vectors.flatten()
    each = side // old.outputs
    index = (torch.tensor(rows)[:, None] * each + torch.arange(each)).flatten()
    among = there.repeat_interleave(each).nonzero()[:, 0]
    matrix = tensor.new_zeros(len(places) * each, len(places) * each)
    matrix[among[:, None], among] = unpacked(tensor, side)[index[:, None], index]
    return packed(matrix)
