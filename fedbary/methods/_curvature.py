"""The curvature of a client's loss by its last layer, and the product of such Gaussians.

A client's Gaussian is N(θ_k, (n G_k + λ)⁻¹), G_k the Hessian of its mean loss as a structure holds
it (`fedbary.aggregation.structures`). The reverse-KL barycentre of such Gaussians, with weights
w_k, has

    precision  Σ w_k n G_k + λ,      mean  M with  Σ w_k (n G_k + λ) (M − θ_k) = 0.

Statistics add, and those of all clients are a structure's of all data. Draws are from these; the
mean is of the sum of the clients' own matrices, which differs where Kronecker products are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from fedbary.aggregation.structures import Structure
from fedbary.data.batches import inputs
from fedbary.errors import SettingError
from fedbary.methods._kronecker import conjugate_gradients, last_layer
from fedbary.methods.shared.method import Local, Tensors
from fedbary.predictive.networks import evaluation

_AT_ONCE = 512
"""Examples that go through the network at a time."""

ROUNDING = 1e-4
"""The largest sum of a row of a softmax's Hessian that counts as 0."""


def statistics(local: Local, structure: Structure) -> dict[str, Tensor]:
    """Return a structure's statistics of the mean loss, in float64.

    Raises
    ------
    SettingError
        If the loss is not convex in the last layer.
    """
    total, is_wide = structure.zeros(), len(last_layer(local.model.state_dict())) > 1
    for features, slopes, bent in passes(local, _AT_ONCE):
        ones = features.new_ones(len(features), int(is_wide))
        by_layer = slopes.mT @ bent @ slopes
        if structure.softmax_alone and by_layer.sum(2).abs().max() > ROUNDING:
            allowed = "a structure other than shared, which bounds one softmax alone"
            raise SettingError("structure", "shared", allowed)
        found = structure.expand(torch.cat([features, ones], 1).double(), by_layer.double())
        total = {name: total[name].to(t.device) + t for name, t in found.items()}
    if fault := structure.fault(total):
        allowed = f"full for a loss that is not convex in the last layer ({fault})"
        raise SettingError("structure", type(structure).__name__.lower(), allowed)
    return {name: tensor / len(local.x) for name, tensor in total.items()}


def passes(local: Local, at_once: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield of some examples at a time what enters the last layer, slopes and Hessians.

    They are what `_through` returns and the Hessians (N, outputs, outputs) of every example's loss
    by the network's outputs. The network is in evaluation mode.
    """
    model = local.model
    layer = model.get_submodule(last_layer(model.state_dict())[0].rpartition(".")[0])
    curvature = vmap(jacrev(jacrev(lambda outputs, y: local.nll(outputs[None], y[None]))))
    with evaluation(model):
        for x, y in zip(local.x.split(at_once), local.y.split(at_once), strict=True):
            features, slopes, outputs = _through(model, layer, inputs(x))
            yield features, slopes, curvature(outputs, y)


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


def barycentre(
    structure: Structure,
    means: Sequence[Tensor],
    held: Sequence[Tensors],
    weights: Sequence[float],
    examples: float,
    ridge: float,
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the barycentre's mean M, and the map from noise (outputs, inputs) to a draw less M.

    Parameters
    ----------
    structure, held
        Structure that holds the G_k, and their statistics.
    means, weights
        θ_k, (outputs, inputs), and w_k, which sum to 1.
    examples, ridge
        n and λ.

    Raises
    ------
    ValueError
        If statistics are those of no convex loss.
    """
    scaled: list[Mapping[str, Tensor]] = []
    for weight, its in zip(weights, held, strict=True):
        if fault := structure.fault(its):
            raise ValueError(f"a curvature of no convex loss: {fault}")
        scaled.append({n: weight * examples * tensor.double() for n, tensor in its.items()})
    products = [structure.product(its) for its in scaled]
    total = {n: sum((its[n] for its in scaled), z) for n, z in structure.zeros().items()}
    start = sum((w * m for w, m in zip(weights, means, strict=True)), torch.zeros_like(means[0]))
    right = ridge * start
    for product, mean in zip(products, means, strict=True):
        right = right + product(mean)

    def applied(to: Tensor) -> Tensor:
        return sum((product(to) for product in products), ridge * to)

    found, _ = conjugate_gradients(applied, structure.solve(total, ridge), right, start)
    return found, structure.root(total, ridge)
