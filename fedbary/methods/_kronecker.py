"""Kronecker factors of the Fisher, layer by layer, and the mode of a product of such Gaussians.

The weight and bias of a Linear or Conv2d layer are a matrix M (out, in + 1). An example has inputs
ā_t, with a 1 for the bias, at T places t. It has slopes g_t of its own loss by the layer's outputs
there. A Linear layer has one place; a Conv2d layer has one a pixel, with the patch around it. Then

    A = mean_i (1/T) Σ_t ā_t ā_tᵀ,      B = mean_i Σ_t g_t g_tᵀ,      Fisher ≈ A ⊗ B.

Reference: Grosse and Martens, A Kronecker-factored approximate Fisher matrix for convolution
layers, ICML 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbary.data.batches import inputs
from fedbary.errors import SettingError
from fedbary.methods.shared.method import Local, Tensors
from fedbary.methods.shared.server_steps import weights_of
from fedbary.predictive.networks import evaluation

_AT_ONCE = 128
"""Examples of which inputs and slopes are held at a time."""


def layers(model: Tensors) -> dict[str, tuple[str, ...]]:
    """Return the layers of a state dict by name, with the names of weight and bias.

    They are those whose weights have 2 or 4 dimensions.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in weights_of(model):
        layer, _, part = name.rpartition(".")
        if part == "weight" and model[name].ndim in (2, 4):
            bias = f"{layer}.bias" if layer else "bias"
            found[layer] = (name, bias) if bias in model else (name,)
    return found


def last_layer(model: Tensors) -> list[str]:
    """Return the names of the last layer's weight, the last that is a matrix, and of its bias.

    Raises
    ------
    SettingError
        If none is a matrix.
    """
    matrices = [name for name in weights_of(model) if model[name].ndim == 2]
    if not matrices:
        raise SettingError("model", ", ".join(model), "a network whose last layer is linear")
    weight = matrices[-1]
    bias = weight.removesuffix("weight") + "bias"
    return [weight, bias] if bias in model and bias != weight else [weight]


def matrix(tensors: Tensors, names: Sequence[str]) -> Tensor:
    """Return a layer's weight, and its bias as the last column, as a matrix in float64."""
    weight, *bias = (tensors[name].double() for name in names)
    return torch.cat([weight.flatten(1), *(column[:, None] for column in bias)], 1)


def tensors_of(found: Tensor, names: Sequence[str], like: Tensors) -> dict[str, Tensor]:
    """Return weight and bias of a matrix, in the shapes and dtypes of the model's."""
    weight = like[names[0]]
    parts = [found[:, : weight[0].numel()].reshape(weight.shape), found[:, -1]]
    return {name: p.to(like[name].dtype) for name, p in zip(names, parts, strict=False)}


def factors(local: Local) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A and B of every layer of a client's network, over its examples, in evaluation mode.

    Raises
    ------
    SettingError
        If a layer is neither Linear nor a plain Conv2d: of one group, padded by zeros.
    """
    model, names = local.model, layers(local.model.state_dict())
    passed: dict[str, list[Tensor]] = {}
    handles = []
    for layer in names:
        module = model.get_submodule(layer)
        _require_plain(layer, module)
        handles.append(module.register_forward_hook(_keeping(passed, layer)))
    total: dict[str, tuple[Tensor, Tensor]] = {}
    try:
        with evaluation(model):
            for x, y in zip(local.x.split(_AT_ONCE), local.y.split(_AT_ONCE), strict=True):
                loss = local.nll(model(inputs(x)), y) * len(x)
                leaving = [passed[layer][1] for layer in names]
                slopes = torch.autograd.grad(loss, leaving, materialize_grads=True)
                for (layer, own), slope in zip(names.items(), slopes, strict=True):
                    found = _sums(model.get_submodule(layer), passed[layer][0], slope, len(own) > 1)
                    before = total.get(layer, (0.0, 0.0))
                    total[layer] = (before[0] + found[0], before[1] + found[1])
    finally:
        for handle in handles:
            handle.remove()
    return {layer: (a / len(local.x), b / len(local.x)) for layer, (a, b) in total.items()}


def product_mode(
    means: Sequence[Tensor],
    factors: Sequence[tuple[Tensor, Tensor]],
    weights: Sequence[float],
    tolerance: float = 1e-8,
    steps: int = 500,
) -> tuple[Tensor, float]:
    """Return the M with Σ w_k B_k M A_k = Σ w_k B_k M_k A_k, and how far the two sides are apart.

    Conjugate gradients start at the weighted mean. Their preconditioner is the Kronecker product of
    the mean factors.

    Parameters
    ----------
    means : sequence of Tensor
        M_k, (out, in), float64.
    factors : sequence of tuple of Tensor
        A_k, (in, in), and B_k, (out, out), positive definite, float64.
    weights : sequence of float
        They sum to 1.
    tolerance : float
        The distance, as a part of the right side, at which it is found.
    steps : int
        At most.
    """
    parts = list(zip(weights, factors, strict=True))
    roots = [
        torch.linalg.cholesky(sum((w * both[i] for w, both in parts), torch.zeros_like(first)))
        for i, first in enumerate(factors[0])
    ]

    def applied(to: Tensor) -> Tensor:
        return sum((w * (b @ to @ a) for w, (a, b) in parts), torch.zeros_like(to))

    def preconditioned(to: Tensor) -> Tensor:
        return torch.cholesky_solve(torch.cholesky_solve(to, roots[1]).T, roots[0]).T

    right = torch.zeros_like(means[0])
    found = torch.zeros_like(means[0])
    for mean, (weight, (a, b)) in zip(means, parts, strict=True):
        right += weight * (b @ mean @ a)
        found += weight * mean
    return conjugate_gradients(applied, preconditioned, right, found, tolerance, steps)


def conjugate_gradients(
    applied: Callable[[Tensor], Tensor],
    preconditioned: Callable[[Tensor], Tensor],
    right: Tensor,
    found: Tensor,
    tolerance: float = 1e-8,
    steps: int = 500,
) -> tuple[Tensor, float]:
    """Return the solution of a positive definite system, and how far its two sides are apart.

    Parameters
    ----------
    applied, preconditioned : callable
        The system's left side, and about its inverse.
    right, found : Tensor
        The right side, and where to start; of one shape.
    tolerance, steps
        As of `product_mode`.
    """
    scale = torch.linalg.norm(right).clamp_min(torch.finfo(right.dtype).tiny)
    left = right - applied(found)
    step = near = preconditioned(left)
    size = (left * near).sum()
    for _ in range(steps):
        if torch.linalg.norm(left) <= tolerance * scale:
            break
        along = applied(step)
        length = size / (step * along).sum()
        found = found + length * step
        left = left - length * along
        near = preconditioned(left)
        size, before = (left * near).sum(), size
        step = near + size / before * step
    return found, float(torch.linalg.norm(left) / scale)


def _keeping(passed: dict[str, list[Tensor]], layer: str) -> Callable[..., None]:
    """Return a hook that keeps what enters and leaves a layer."""

    def hook(module: nn.Module, entering: tuple[Tensor, ...], leaving: Tensor) -> None:
        passed[layer] = [entering[0].detach(), leaving]

    return hook


def _sums(
    module: nn.Module, entering: Tensor, slope: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor]:
    """Return Σ_i (1/T) Σ_t ā_t ā_tᵀ and Σ_i Σ_t g_t g_tᵀ over some examples."""
    examples = len(entering)
    if isinstance(module, nn.Conv2d):
        window = module.dilation, module.padding, module.stride
        entering = functional.unfold(entering, module.kernel_size, *window).transpose(1, 2)  # type: ignore[arg-type]
        slope = slope.flatten(2).transpose(1, 2)
    entering, slope = entering.flatten(0, -2), slope.flatten(0, -2)
    if has_bias:
        entering = torch.cat([entering, entering.new_ones(len(entering), 1)], 1)
    return entering.T @ entering * (examples / len(entering)), slope.T @ slope


def _require_plain(layer: str, module: nn.Module) -> None:
    plain = isinstance(module, nn.Linear) or (
        isinstance(module, nn.Conv2d)
        and module.groups == 1
        and not isinstance(module.padding, str)
        and module.padding_mode == "zeros"
    )
    if not plain:
        allowed = "Linear, or Conv2d of one group, padded by a number of zeros"
        raise SettingError(f"layer {layer!r}", type(module).__name__, allowed)
