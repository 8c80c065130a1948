"""FedLPA: layer-wise Kronecker Laplace approximations, multiplied; made for one round.

A client trains point weights θ_k. In a pass over its data it takes per layer the Kronecker factors
of its Fisher: A_k of the layer's inputs, and B_k of the loss's slopes by its outputs. M_k is the
layer's weight and bias as a matrix, Ā_k = A_k + √damping I, and B̄_k likewise. The client's
posterior is N(M_k, (B̄_k ⊗ Ā_k)⁻¹). The server takes the mode M of the product,

    Σ w_k B̄_k M Ā_k = Σ w_k B̄_k M_k Ā_k,

by conjugate gradients. Tensors other than weights and biases of Linear and Conv2d layers are
averaged by size.

A client has influence in directions in which its loss is curved. With equal factors it is FedAvg.
It nearly is, too, if damping outweighs the slopes, as after long training. Equal networks do not
change. Further rounds begin from M.

It assumes that layers are independent of each other, and that a layer's inputs are independent of
its slopes. The prediction is a point.

Messages: 1 model down; up 1 and two triangles per layer, (in + 1)(in + 2)/2 and out (out + 1)/2
numbers: 1.5 models more of the cnn on Fashion-MNIST. Nothing is kept.

Cost: a client pays about an epoch; the server K (in³ + out³) and some K (in² out + in out²) a step,
about ten of them. A layer of more than `most_side` inputs is refused.

Use it where one round is all there is, and clients' labels differ.

Traps of the public code: it sends squares, not triangles. It solves for M by 10,000 gradient steps.
It reports the better of two solutions by the accuracy on the test set.

Reference: Liu et al., FedLPA: One-shot Federated Learning with Layer-Wise Posterior Aggregation,
NeurIPS 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedbary.aggregation.covariance import packed, unpacked, with_ridge
from fedbary.errors import SettingError
from fedbary.methods._curvature import factors, layers, matrix, product_mode, tensors_of
from fedbary.methods._method import (
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    shares,
    weighted_mean,
)
from fedbary.parts.parameters import Count, Positive

INPUTS, SLOPES = "inputs/", "slopes/"
"""The prefix of the keys of A and B, as triangles."""

ENOUGH = 1e-4
"""The part of the right side that the left may be away from it, above which the server says so."""


@dataclass(frozen=True)
class FedLPA(Method):
    """Layer-wise Kronecker Laplace approximations (Liu et al. 2024), multiplied, for point weights.

    Parameters
    ----------
    damping : float
        Damping, whose root is added to the diagonals of both factors.
    most_side : int
        Largest number of inputs and of outputs of a layer; its factors are their squares.
    """

    damping: Positive = 0.001
    most_side: Count = 4096

    deterministic = True

    def start(self, model: Tensors) -> Tensors:
        """Refuse a layer whose factors are too large; there is no state."""
        self._sides(model)
        return {}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train point weights, and take the factors of their Fisher."""
        self._sides(received)
        local.load(received)
        metrics = local.infer(local.prior)
        reply = local.state()
        for layer, (a, b) in factors(local).items():
            reply |= {INPUTS + layer: packed(a), SLOPES + layer: packed(b)}
        return Fitted(reply, metrics)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return a model, and the triangles of two factors per layer."""
        like = dict(model)
        for layer, sides in self._sides(model).items():
            for word, side in zip((INPUTS, SLOPES), sides, strict=True):
                tensor = model[layers(model)[layer][0]]
                like[word + layer] = tensor.new_zeros(side * (side + 1) // 2)
        return like

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Find the mode of the product, layer by layer."""
        model, sides = weighted_mean(replies, list(server.model)), self._sides(server.model)
        for layer, names in layers(server.model).items():
            means = [matrix(reply.tensors, names) for reply in replies]
            both = [
                (
                    self._damped(reply.tensors[INPUTS + layer], sides[layer][0]),
                    self._damped(reply.tensors[SLOPES + layer], sides[layer][1]),
                )
                for reply in replies
            ]
            found, distance = product_mode(means, both, shares(replies))
            if distance > ENOUGH:
                server.warn(f"layer {layer!r}: the mode of the product is found to {distance:.1g}")
            model |= tensors_of(found, names, server.model)
        return model, {}

    def _damped(self, triangle: Tensor, side: int) -> Tensor:
        """Return a factor with √damping on its diagonal; eigenvalues below 0 count as 0."""
        return with_ridge(unpacked(triangle.double(), side), self.damping**0.5)

    def _sides(self, model: Tensors) -> dict[str, tuple[int, int]]:
        """Return by layer the sides of A and B."""
        found = {}
        for layer, names in layers(model).items():
            outs = len(model[names[0]])
            found[layer] = model[names[0]][0].numel() + len(names) - 1, outs
            if (side := max(found[layer])) > self.most_side:
                said = f"{side:,} in layer {layer!r}, a factor of {8 * side**2:,} bytes"
                raise SettingError("most_side", said, f"at most {self.most_side:,}")
        return found
