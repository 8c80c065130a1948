"""Laplace of the last layer with its full covariance, aggregated by a barycentre of such Gaussians.

A client trains point weights θ_k, and takes the Hessian of its mean loss by the weights of the last
layer,

    G_k = (1/n_k) Σ_i J_iᵀ Λ_i J_i,

with J the outputs' Jacobian and Λ the loss's Hessian by the outputs. It is exact, because outputs
are linear in these weights. With n the examples of all clients and the prior N(0, 1/λ) its
posterior is

    q_k = N(θ_k, (n G_k + λ)⁻¹).

Its data count n/n_k times: each client estimates the posterior of all data, and w_k = n_k/n weighs
these estimates. The server takes their barycentre. RKLB's is C⁻¹ = Σ n_k G_k + λ, the product of
the likelihoods with the prior once. WB's is the Wasserstein-2 barycentre, by a fixed point
(`fedbary.aggregation.covariance`). All other weights are averaged by size. The next round starts
from the mean, and predictions are of `networks` networks whose last layer is drawn from N(m, C).

For a linear model with weight_decay λ/n, one round of RKLB is the posterior of all data exactly,
whatever the correlations. The mean-field methods are not.

`structure` says how G is held, for C outputs and d inputs with the bias:

    full        the triangle of p = C d weights, exact
    kronecker   C d + d²/2 + C²/2
    shared      d²/2: one matrix for all classes, Böhning's bound on a softmax
    diagonal    C d

All but `full` work only with RKLB. The product of mean Kronecker factors is not exactly the mean of
the products. So means m are solved exactly, by conjugate gradients; draws use the summed factors.

It assumes that the loss is quadratic in the last layer, and that all clients have the same
features.

Messages: 1 model down; up 1 and G. A full G has p (p + 1)/2 numbers (8 models of the cnn: p = 850),
and more than `most_weights` are refused. Clients that score also receive the drawn last layers, so
that `calibrate=temperature` fits what predicts. Clients keep nothing.

Cost: `full` costs a client one pass and p² numbers. It costs the server K p³ products for RKLB, and
some ten times K p³ for WB: 1 s and 20 s a round for ten clients of the cnn, on a core. The other
structures cost d² numbers and d³ products. The server keeps the draws, and C if it is full.

Use it where weights of the last layer are correlated: full for tables and small heads, the others
for features of a pretrained network.

References: MacKay, A Practical Bayesian Framework for Backpropagation Networks, 1992; Kristiadi,
Hein and Hennig, Being Bayesian, Even Just a Bit, ICML 2020; BA-BFL, eqs. 8 and 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedbary.aggregation.covariance import (
    STRUCTURES,
    Structure,
    packed,
    reverse_kl_barycentre,
    unpacked,
    wasserstein_barycentre,
    with_ridge,
)
from fedbary.errors import SettingError
from fedbary.methods._curvature import (
    barycentre,
    last_layer,
    matrix,
    passes,
    statistics,
    tensors_of,
)
from fedbary.methods._descent import GRADIENTS_AT_ONCE
from fedbary.methods._method import (
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    all_examples,
    completed,
    shares,
    weighted_mean,
)
from fedbary.parts.parameters import Count, Positive
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Members
from fedbary.seeds import derive_seed

BARYCENTRES: Mapping[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "RKLB": reverse_kl_barycentre,
    "WB": partial(wasserstein_barycentre, tolerance=1e-5),
}

CURVATURE, COVARIANCE, DRAWS = "curvature/last", "covariance/last", "draws/last"
"""The keys of a client's Hessian, of C, both as triangles, and of the drawn last layers."""

_KEY = "curvature/"
"""The prefix of the keys of a structure's statistics."""


@dataclass(frozen=True)
class LastLayerLaplace(Method):
    """Laplace of the last layer with full covariances, their barycentre, for point weights.

    Parameters
    ----------
    rule : str
        Rule that aggregates the Gaussians: RKLB or WB.
    prior_precision : float
        λ, the precision of the prior.
    networks : int
        Number of networks drawn after each round; they predict together.
    structure : str
        Structure of a Hessian: full, kronecker, shared, diagonal.
    most_weights : int
        Largest number of weights of a last layer with structure=full; the covariance is its square.
    """

    rule: Literal["RKLB", "WB"] = "RKLB"
    prior_precision: Positive = 1.0
    networks: Count = 10
    structure: Literal["full", "kronecker", "shared", "diagonal"] = "full"
    most_weights: Count = 4096

    deterministic = True
    members = Members

    def __post_init__(self) -> None:
        """Check the parameters, and that a structure has its rule."""
        super().__post_init__()
        if self.structure != "full" and self.rule != "RKLB":
            raise SettingError("rule", self.rule, f"RKLB for structure={self.structure}")

    def held(self, clients: int) -> int:
        """Return how many networks the server holds."""
        return self.networks

    def start(self, model: Tensors) -> Tensors:
        """Refuse a last layer whose covariance is too large; there is no state yet."""
        self._size(model)
        return {}

    def show(self, server: Server, client: str) -> Tensors:
        """Return the global model and the last layers that were drawn, by which it predicts."""
        drawn = {DRAWS: server.state[DRAWS]} if server.state else {}
        return {**server.model, **drawn}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train point weights, and take the Hessian of the last layer."""
        self._size(received)
        local.load(received)
        metrics, reply = local.infer(local.prior), local.state()
        if self.structure == "full":
            return Fitted({**reply, CURVATURE: packed(hessian(local))}, metrics)
        like = reply[last_layer(reply)[0]]
        held = statistics(local, self._held_as(received))
        return Fitted({**reply, **{_KEY + name: t.to(like) for name, t in held.items()}}, metrics)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return a model, and the triangle of a Hessian, or the statistics of its structure."""
        size, like = self._size(model), model[last_layer(model)[0]]
        if self.structure == "full":
            return {**model, CURVATURE: like.new_zeros(size * (size + 1) // 2)}
        sizes = self._held_as(model).sizes().items()
        return {**model, **{_KEY + name: like.new_zeros(size) for name, size in sizes}}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Take the barycentre, and draw networks from it."""
        if self.structure != "full":
            return self._structured(server, replies)
        names, size = last_layer(server.model), self._size(server.model)
        examples = all_examples(server, replies)
        means = torch.stack([_flat(reply.tensors, names) for reply in replies]).double()
        covariances = torch.stack(
            [self._covariance(examples, reply.tensors[CURVATURE], size) for reply in replies]
        )
        weights = torch.tensor(shares(replies), dtype=torch.float64)
        mean, covariance = BARYCENTRES[self.rule](means, covariances, weights)
        generator = torch.Generator().manual_seed(derive_seed(server.seed, "last layer"))
        noise = torch.randn(self.networks, size, generator=generator, dtype=torch.float64)
        drawn = mean + noise @ torch.linalg.cholesky(covariance).T
        like = server.model[names[0]]
        model = {**weighted_mean(replies, list(server.model)), **_named(mean, server.model, names)}
        return model, {COVARIANCE: packed(covariance).to(like), DRAWS: drawn.to(like)}

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the global model with the last layers that were drawn."""
        if not state:
            return Predictive(model)
        drawn = _named(state[DRAWS], model, last_layer(model))
        return Predictive(model, members=completed(drawn, model))

    def _structured(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Take the product of Gaussians whose precisions have a structure, and draw from it."""
        names, structure = last_layer(server.model), self._held_as(server.model)
        like = server.model[names[0]]
        mean, root = barycentre(
            structure,
            [matrix(reply.tensors, names) for reply in replies],
            [{n: reply.tensors[_KEY + n] for n in structure.sizes()} for reply in replies],
            shares(replies),
            all_examples(server, replies),
            self.prior_precision,
        )
        generator = torch.Generator().manual_seed(derive_seed(server.seed, "last layer"))
        size = self.networks, *mean.shape
        noise = torch.randn(size, generator=generator, dtype=torch.float64)
        drawn = [tensors_of(mean + root(z), names, server.model) for z in noise]
        model = weighted_mean(replies, list(server.model))
        model |= tensors_of(mean, names, server.model)
        return model, {DRAWS: torch.stack([_flat(each, names) for each in drawn]).to(like)}

    def _held_as(self, model: Tensors) -> Structure:
        return STRUCTURES[self.structure](*matrix(model, last_layer(model)).shape)

    def _covariance(self, examples: float, triangle: Tensor, size: int) -> Tensor:
        """Return (n G + λ)⁻¹; eigenvalues of G below 0, which no convex loss has, count as 0."""
        curvature = examples * unpacked(triangle.double(), size)
        precision = with_ridge(curvature, self.prior_precision)
        return torch.cholesky_inverse(torch.linalg.cholesky(precision))

    def _size(self, model: Tensors) -> int:
        names = last_layer(model)
        size = sum(model[name].numel() for name in names)
        if self.structure == "full" and size > self.most_weights:
            said = f"{size:,} weights in {', '.join(names)}, a covariance of {8 * size**2:,} bytes"
            allowed = f"at most {self.most_weights:,} weights, or structure=kronecker"
            raise SettingError("most_weights", said, allowed)
        return size


def hessian(local: Local) -> Tensor:
    """Return the Hessian (p, p) of the mean loss by the weights of the last layer.

    The network is in evaluation mode. Weights come in the order of the tensors in `last_layer`.
    """
    state = local.model.state_dict()
    weight = state[last_layer(state)[0]]
    size = sum(state[name].numel() for name in last_layer(state))
    total = weight.new_zeros(size, size)
    at_once = max(1, GRADIENTS_AT_ONCE // (size * len(weight)))
    for features, slopes, bent in passes(local, at_once):
        jacobian = (slopes[..., None] * features[:, None, None]).flatten(2)
        jacobian = torch.cat([jacobian, slopes], 2)[..., :size]
        total += jacobian.flatten(0, 1).T @ (bent @ jacobian).flatten(0, 1)
    return total / len(local.x)


def _flat(tensors: Tensors, names: Sequence[str]) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in names])


def _named(vectors: Tensor, like: Tensors, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the tensors that vectors (…, p) hold, in the dtypes and shapes of the model's."""
    parts = vectors.split([like[name].numel() for name in names], -1)
    return {
        name: part.unflatten(-1, like[name].shape).to(like[name].dtype).contiguous()
        for name, part in zip(names, parts, strict=True)
    }
