"""SGD from the point weights that a client received, step by step, and the curvature where it ends.

Helpers of methods that look at a client's path, or at the loss around its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vmap

from fedbary.data.batches import scale_pixels
from fedbary.inference._steps import Momentum, Steps, Vectors
from fedbary.methods._method import Local, Tensors, weights_of
from fedbary.predictive.networks import evaluation

NetworkCall = Callable[[dict[str, Tensor], Tensor], Tensor]
"""A network's outputs (1, …) for one input, from its trained weights by name."""

GRADIENTS_AT_ONCE = 2**24
"""Numbers of per-example gradients that are held at a time: 64 MB in float32."""


class Descent:
    """SGD with momentum on the mean NLL of a client's network, whose parameters are one vector.

    Going through it takes the steps, and yields after each the epoch that it is in, from 0.

    Parameters
    ----------
    local : Local
        The client's round; its network holds what it starts from.
    pull : mapping of str to Tensor, optional
        p by parameter: ½ Σ p (θ − θ_g)² is added to the loss, θ_g being the start. It acts by an
        implicit step, so that no p is too large for the rate.

    Attributes
    ----------
    vectors : Vectors
        The network's parameters, `vectors.points.value`, and their names, `vectors.point_names`.
    start : Tensor
        θ_g, (d,).
    """

    def __init__(self, local: Local, pull: Tensors | None = None) -> None:
        self.local, self.vectors = local, Vectors(local.model, 1.0)
        self.steps = Steps(local, self.vectors.points)
        self.start = self.vectors.points.value.clone()
        self.implicit: Tensor | None = None
        if pull is not None:
            rate = local.training.lr / (1 - local.training.momentum)
            self.implicit = rate * self.vectors.packed(pull)

    def __iter__(self) -> Iterator[int]:
        local, points = self.local, self.vectors.points
        sgd = Momentum(self.vectors, local.training, 0.0)
        steps = math.ceil(len(local.x) / local.training.batch_size)
        for step, _ in enumerate(self.steps):
            points.value.sub_(sgd.update(), alpha=local.training.lr)
            if self.implicit is not None:
                points.value.addcmul_(self.implicit, self.start).div_(1 + self.implicit)
            yield step // steps

    @property
    def metrics(self) -> dict[str, float]:
        """Return the mean NLL of the last epoch, in nats."""
        return self.steps.metrics


def fisher(local: Local) -> dict[str, Tensor]:
    """Return the diagonal empirical Fisher, the mean over the examples of squared gradients.

    F = (1/n_k) Σ_i (∂ −log p(y_i | x_i, θ) / ∂θ)², each example's gradient on its own. The square
    of a batch's mean gradient is smaller by about the batch's size. The network is in evaluation
    mode. F is 0 for weights that it does not train.
    """

    def squares(
        call: NetworkCall, weights: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        gradients = grad(lambda held: local.nll(call(held, x), y[None]))(weights)
        return {name: each.square() for name, each in gradients.items()}

    return _mean_over_examples(local, squares, 1)


def gauss_newton(local: Local) -> dict[str, Tensor]:
    """Return the diagonal of the generalised Gauss-Newton matrix, a mean over the examples.

    G = (1/n_k) Σ_i J_iᵀ Λ_i J_i with J_i = ∂ outputs / ∂θ and Λ_i the Hessian of the example's loss
    by its outputs. If outputs are linear in θ, it is the loss's own Hessian. Otherwise as `fisher`.
    """

    def diagonal(
        call: NetworkCall, weights: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        outputs = call(weights, x)
        bent = jacrev(jacrev(lambda held: local.nll(held, y[None])))(outputs)[0, :, 0]
        slopes = jacrev(lambda held: call(held, x)[0])(weights)
        return {
            name: torch.einsum("c...,cd,d...->...", each, bent, each)
            for name, each in slopes.items()
        }

    model = local.model
    with evaluation(model), torch.no_grad():
        outputs = model(scale_pixels(local.x[:1])).numel()
    return _mean_over_examples(local, diagonal, outputs)


def _mean_over_examples(
    local: Local, each: Callable[..., dict[str, Tensor]], numbers: int
) -> dict[str, Tensor]:
    """Return the mean of what a function finds of single examples, for each of the weights.

    Parameters
    ----------
    each
        From a call of the network on one input, its trained weights, that input and its target.
    numbers
        Numbers that a weight has while an example is looked at.
    """
    model = local.model
    trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    held = {n: t for n, t in model.state_dict().items() if n not in trained}

    def call(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        found: Tensor = functional_call(model, {**weights, **held}, (x[None],))
        return found

    count = numbers * sum(tensor.numel() for tensor in trained.values())
    at_once = max(1, GRADIENTS_AT_ONCE // count)
    total = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    examples = partial(_of_examples, partial(each, call))
    with evaluation(model):
        for x, y in zip(local.x.split(at_once), local.y.split(at_once), strict=True):
            for name, found in examples(trained, scale_pixels(x), y).items():
                total[name] += found.sum(0)
    return {name: total[name] / len(local.x) for name in weights_of(total)}


def _of_examples(
    each: Callable[..., dict[str, Tensor]], weights: dict[str, Tensor], x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """Return what a function finds of single examples, (n, …); together where a vmap takes it."""
    try:
        return vmap(each, in_dims=(None, 0, 0))(weights, x, y)
    except RuntimeError as error:  # a transformer's masks depend on its tokens
        if "random" in str(error):
            raise
        rows = [each(weights, *one) for one in zip(x, y, strict=True)]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
