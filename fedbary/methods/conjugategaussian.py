"""ConjugateGaussian: the exact posterior of a linear regression from clients' sums, in one round.

A client sends one triangle: the mean products of z = (φ, 1, y), the features, a one, the target.
The server adds the triangles. With n examples, mean features m and their scatter A, the model is

    y = wᵀ (φ − m) + b + ε,    ε ~ N(0, s²),    w ~ N(0, s²/λ),    b free.

The prior of s² is that of Ridge. So is λ: the value with the largest evidence. The posterior is

    s² ~ Q/χ²(n),    w | s² ~ N(ŵ, s² (A + λ)⁻¹),    b | s² ~ N(ȳ, s²/n),

and the prediction for a new target is a Student's t of n degrees of freedom,

    ŵᵀ (φ − m) + ȳ,    squared scale Q/n · (1 + 1/n + (φ − m)ᵀ (A + λ)⁻¹ (φ − m)).

Predictions mix `networks` draws of (w, b, s²); with more draws they approach that t. The model
itself is ŵ, its bias, and the noise's variance.

It assumes a linear target and one noise for all. Its intervals are wide where rows are few.

Messages: the network down; (d + 2)(d + 3)/2 numbers up, once. A further round adds clients that are
new; a client's newest sums replace its earlier ones. The server keeps each client's sums.

Cost: a client pays one pass and n d² products; the server some ten times d³.

Use it for tables whose target is a number, where every row stays at its site.

Reference: Gelman et al., Bayesian Data Analysis, 14.2; MacKay, Bayesian Interpolation, Neural
Computation 1992, for λ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.aggregation.covariance import packed, unpacked
from fedbary.errors import SettingError
from fedbary.methods._conditions import Unfit
from fedbary.methods._method import Method, Server, Tensors, completed
from fedbary.methods._sites import centred_scatter, require_rank
from fedbary.methods._sums import LastLayer, SumsMethod, head_names, total_of
from fedbary.methods.ridge import best_ridge
from fedbary.parts.parameters import Count
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Members
from fedbary.seeds import derive_seed
from fedbary.settings.config import Settings
from fedbary.settings.owners import task_kind
from fedbary.settings.task_words import OfNumbers

PRODUCTS, DRAWS = "sums/products", "draws/"
"""The keys of a client's triangle, and of what is drawn of each tensor."""

NOISE = "log_noise_var"
"""The tensor of the network that holds the logarithm of the noise's variance."""


def of_numbers(method: Method, run: Settings) -> Unfit:
    """Refuse tasks whose targets are no numbers, and networks whose noise is not one."""
    if not task_kind(run.task).numbers:
        yield "method", f"another for task={run.task}: {method.name} predicts numbers"
    elif run.of_task(OfNumbers).noise != "learned":
        yield "noise", f"learned for method={method.name}"


@dataclass(frozen=True)
class ConjugateGaussian(SumsMethod):
    """The exact posterior of a linear regression from clients' sums, with its prior by evidence.

    Parameters
    ----------
    networks : int
        Number of networks drawn after each round; they predict together.
    """

    networks: Count = 100

    members = Members
    conditions = (of_numbers,)

    def held(self, clients: int) -> int:
        """Return how many networks the server holds."""
        return self.networks

    def start(self, model: Tensors) -> Tensors:
        """Refuse a network that is no regression's with one noise; there is no state yet."""
        if model[head_names(model)[0]].shape[0] != 1 or NOISE not in model:
            raise SettingError("method", self.name, "task=regression with noise=learned")
        return super().start(model)

    def sizes(self, features: int, outputs: int) -> Mapping[str, int]:
        """Return the size of the triangle."""
        return {PRODUCTS: (features + 2) * (features + 3) // 2}

    def products(self, features: Tensor, y: Tensor, outputs: int) -> Tensors:
        """Return the triangle of the sums of products."""
        rows = torch.cat([features, torch.ones_like(features[:, :1]), y.double()[:, None]], 1)
        return {PRODUCTS: packed(rows.T @ rows)}

    def gram(self, means: Tensors) -> Tensor:
        """Return the mean of z zᵀ, z = (φ, 1, y), (d + 2, d + 2)."""
        return _products(means)

    def columns(self, means: Tensors) -> tuple[Tensor, Tensor]:
        """Return mean and mean square (d + 1,) of the features and the target."""
        whole = _products(means)
        kept = _without_ones(whole)
        return whole[-2, kept], whole.diagonal()[kept]

    def rescaled(self, means: Tensors, shift: Tensor, scale: Tensor) -> Tensors:
        """Return the means of the same examples with columns (z − shift)/scale."""
        whole = _products(means)
        kept = _without_ones(whole)
        turn = torch.eye(len(whole), dtype=torch.float64)
        turn[kept, kept] = 1 / scale
        turn[kept, -2] = -shift / scale
        return {PRODUCTS: packed(turn @ whole @ turn.T)}

    def require_possible(self, means: Tensors, examples: float | None) -> None:
        """Raise a ValueError if no examples have such sums, of so many if that is known."""
        _, covariance = _centred(means)
        if examples is not None:
            require_rank(covariance, _products(means), round(examples) - 1)

    def head(self, count: float, means: Tensors, sites: int) -> LastLayer:
        """Return ŵ and its bias."""
        weight, bias, *_ = _posterior(count, means)
        return LastLayer(weight[None], bias[None])

    def model_of(self, server: Server, state: Tensors) -> tuple[Tensors, Tensors]:
        """Return the posterior's mean, and the state with what is drawn from the posterior."""
        model, state = super().model_of(server, state)
        names = head_names(server.model)
        count, means = total_of(state)
        weight, _, centre, mean, root, squares = _posterior(count, means)
        generator = torch.Generator().manual_seed(derive_seed(server.seed, "conjugate"))
        size, many = len(weight), self.networks
        noise = torch.randn(many, size + 1, generator=generator, dtype=torch.float64)
        shape = torch.full((many,), count / 2, dtype=torch.float64)
        var = squares / 2 / torch._standard_gamma(shape, generator=generator)
        weights = weight + var.sqrt()[:, None] * noise[:, :-1] @ root.T
        biases = centre + (var / count).sqrt() * noise[:, -1] - weights @ mean
        drawn = {names[0]: weights[:, None], names[1]: biases[:, None], NOISE: var.log()}
        log_var = torch.tensor(math.log(squares / count)).to(server.model[NOISE])
        state = {name: tensor for name, tensor in state.items() if not name.startswith(DRAWS)}
        state |= {DRAWS + name: tensor.to(server.model[name]) for name, tensor in drawn.items()}
        return {**model, NOISE: log_var}, state

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the model, and the networks that were drawn."""
        drawn = {name: state[DRAWS + name] for name in model if DRAWS + name in state}
        if not drawn:
            return Predictive(model)
        return Predictive(model, members=completed(drawn, model))


def _centred(means: Tensors) -> tuple[Tensor, Tensor]:
    """Return means (d + 1,) and covariances (d + 1, d + 1) of features and target.

    Raises
    ------
    ValueError
        If no examples have such sums.
    """
    size = len(_products(means))
    whole = centred_scatter(means[PRODUCTS], size, torch.zeros(size, size, dtype=torch.float64))
    if abs(float(whole[-2, -2]) - 1) > 1e-4:
        raise ValueError("the mean of ones is not 1")
    kept = _without_ones(whole)
    mean = whole[-2, kept]
    return mean, whole[kept][:, kept] - torch.outer(mean, mean)


def _products(means: Tensors) -> Tensor:
    """Return the mean of z zᵀ, z = (φ, 1, y), (d + 2, d + 2)."""
    size = (math.isqrt(8 * len(means[PRODUCTS]) + 1) - 1) // 2
    return unpacked(means[PRODUCTS].double(), size)


def _without_ones(whole: Tensor) -> list[int]:
    """Return the places of features and target among (φ, 1, y)."""
    return [*range(len(whole) - 2), len(whole) - 1]


def _posterior(
    count: float, means: Tensors
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]:
    """Return ŵ, its bias, ȳ, m, a root (d, d) of (A + λ)⁻¹, and Q."""
    mean, covariance = _centred(means)
    values, vectors = torch.linalg.eigh(count * covariance[:-1, :-1])
    values = values.clamp_min(0)
    products = (count * covariance[-1:, :-1]) @ vectors
    squares = max(count * float(covariance[-1, -1]), 1e-12)
    scale, noise = best_ridge(values, products, squares, count)
    weight = (products / (values + scale) @ vectors.T)[0]
    root = vectors / (values + scale).sqrt()
    return weight, mean[-1] - weight @ mean[:-1], mean[-1], mean[:-1], root, count * noise**2
