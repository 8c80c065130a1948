"""Laplace of the last layer with its full covariance, aggregated by a barycentre of such Gaussians.

A client trains point weights θ_k, and takes the Hessian of its mean loss by the weights of the last
layer, G_k = (1/n_k) Σ_i J_iᵀ Λ_i J_i, J the outputs' Jacobian and Λ the loss's Hessian by them; it
is exact, as outputs are linear there. With n the examples of all clients and the prior N(0, 1/λ)
its posterior is

    q_k = N(θ_k, (n G_k + λ)⁻¹),

its data counted n/n_k times, so that w_k = n_k/n weighs what every client says of all data. The
server takes their barycentre: under RKLB C⁻¹ = Σ n_k G_k + λ, the product of the likelihoods with
the prior once; under WB the Wasserstein-2 barycentre, by a fixed point
(`fedbary.aggregation.covariance`). All other weights are averaged by size. The next round starts
from the mean, and predictions are of `networks` networks whose last layer is drawn from N(m, C).

Of a linear model with weight_decay λ/n one round of RKLB is the posterior of all data exactly,
whatever the correlations, where the mean-field methods are not.

It assumes that the loss is quadratic in the last layer, and features the same at all clients.

What travels: 1 model down; up 1 and a triangle of p (p + 1)/2 numbers for p weights in the last
layer (8 models of the cnn: p = 850). More than `most_weights` are refused. Clients keep nothing.

What it costs: a client pays p² numbers and one pass; the server K p³ for RKLB and some ten times K
p³ for WB: of ten clients of the cnn 1 s and 20 s a round on a core. It keeps C and the draws.

Use it where weights of the last layer are correlated and there are few of them, as of tables and
small heads.

References: MacKay, A Practical Bayesian Framework for Backpropagation Networks, 1992; Kristiadi,
Hein and Hennig, Being Bayesian, Even Just a Bit, ICML 2020; BA-BFL, eqs. 8 and 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from fedbary.aggregation.covariance import (
    packed,
    reverse_kl_barycentre,
    unpacked,
    wasserstein_barycentre,
    with_ridge,
)
from fedbary.data.batches import inputs
from fedbary.errors import SettingError
from fedbary.methods._kronecker import last_layer
from fedbary.methods.shared.descent import GRADIENTS_AT_ONCE
from fedbary.methods.shared.method import (
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    all_examples,
    shares,
    weighted_mean,
)
from fedbary.parts.parameters import Count, Positive
from fedbary.predictive import Predictive
from fedbary.predictive.networks import evaluation
from fedbary.seeds import derive_seed

BARYCENTRES: Mapping[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "RKLB": reverse_kl_barycentre,
    "WB": partial(wasserstein_barycentre, tolerance=1e-5),
}

CURVATURE, COVARIANCE, DRAWS = "curvature/last", "covariance/last", "draws/last"
"""The keys of a client's Hessian, of C, both as triangles, and of the drawn last layers."""


@dataclass(frozen=True)
class LastLayerLaplace(Method):
    """Laplace of the last layer with full covariances, their barycentre, for point weights.

    Parameters
    ----------
    rule : str
        Under which the Gaussians are aggregated: RKLB or WB.
    prior_precision : float
        λ of the prior.
    networks : int
        Drawn after each round: they predict together.
    most_weights : int
        The most weights that a last layer may have, as its covariance is their square.

    Raises
    ------
    SettingError
        If a parameter is out of its range.
    """

    rule: Literal["RKLB", "WB"] = "RKLB"
    prior_precision: Positive = 1.0
    networks: Count = 10
    most_weights: Count = 4096

    deterministic = True
    has_members = True

    def held(self, clients: int) -> int:
        """Return how many networks the server holds."""
        return self.networks

    def start(self, model: Tensors) -> Tensors:
        """Refuse a last layer whose covariance is too large; there is no state yet."""
        self._size(model)
        return {}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train point weights, and take the Hessian of the last layer."""
        self._size(received)
        local.load(received)
        metrics = local.infer(local.prior)
        return Fitted({**local.state(), CURVATURE: packed(hessian(local))}, metrics)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return a model, and the triangle of a Hessian."""
        size, like = self._size(model), model[last_layer(model)[0]]
        return {**model, CURVATURE: like.new_zeros(size * (size + 1) // 2)}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Take the barycentre, and draw networks from it."""
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
        members = {
            name: drawn.get(name, tensor.expand(len(state[DRAWS]), *tensor.shape))
            for name, tensor in model.items()
        }
        return Predictive(model, members=members)

    def _covariance(self, examples: float, triangle: Tensor, size: int) -> Tensor:
        """Return (n G + λ)⁻¹; eigenvalues of G below 0, which no convex loss has, count as 0."""
        curvature = examples * unpacked(triangle.double(), size)
        precision = with_ridge(curvature, self.prior_precision)
        return torch.cholesky_inverse(torch.linalg.cholesky(precision))

    def _size(self, model: Tensors) -> int:
        names = last_layer(model)
        size = sum(model[name].numel() for name in names)
        if size > self.most_weights:
            said = f"{size:,} weights in {', '.join(names)}, a covariance of {8 * size**2:,} bytes"
            raise SettingError("most_weights", said, f"at most {self.most_weights:,} weights")
        return size


def hessian(local: Local) -> Tensor:
    """Return the Hessian (p, p) of the mean loss by the weights of the last layer.

    The network is in evaluation mode. Weights come in the order of the tensors in `last_layer`.
    """
    model = local.model
    state = model.state_dict()
    names = last_layer(state)
    layer = model.get_submodule(names[0].rpartition(".")[0])
    curvature = vmap(jacrev(jacrev(lambda outputs, y: local.nll(outputs[None], y[None]))))
    size = sum(state[name].numel() for name in names)
    total = state[names[0]].new_zeros(size, size)
    at_once = max(1, GRADIENTS_AT_ONCE // (size * len(state[names[0]])))
    with evaluation(model):
        for x, y in zip(local.x.split(at_once), local.y.split(at_once), strict=True):
            features, slopes, outputs = _through(model, layer, inputs(x))
            jacobian = (slopes[..., None] * features[:, None, None]).flatten(2)
            jacobian = torch.cat([jacobian, slopes], 2)[..., :size]
            bent = curvature(outputs, y) @ jacobian
            total += jacobian.flatten(0, 1).T @ bent.flatten(0, 1)
    return total / len(local.x)


def _through(model: nn.Module, layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what enters a layer (N, in), the outputs' slopes by what leaves it, and the outputs.

    The slopes are (N, outputs, out), of each example's outputs by its own.
    """
    passed: list[Tensor] = []

    def hook(layer: nn.Module, entering: tuple[Tensor, ...], leaving: Tensor) -> Tensor:
        passed[:] = [entering[0].detach(), leaving.detach().requires_grad_()]
        return passed[1]

    with layer.register_forward_hook(hook):
        outputs = model(x)
    slopes = [
        torch.autograd.grad(each.sum(), passed[1], retain_graph=True, materialize_grads=True)[0]
        for each in outputs.unbind(1)
    ]
    return passed[0], torch.stack(slopes, 1), outputs.detach()


def _flat(tensors: Tensors, names: Sequence[str]) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in names])


def _named(vectors: Tensor, like: Tensors, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the tensors that vectors (…, p) hold, in the dtypes and shapes of the model's."""
    parts = vectors.split([like[name].numel() for name in names], -1)
    return {
        name: part.unflatten(-1, like[name].shape).to(like[name].dtype).contiguous()
        for name, part in zip(names, parts, strict=True)
    }
