"""The curvature of a client's loss by its last layer, and the product of such Gaussians.

A client's Gaussian is N(θ_k, (n G_k + λ)⁻¹), G_k the Hessian of its mean loss as a structure holds
it (`fedbary.aggregation.covariance`). The reverse-KL barycentre of such Gaussians, with weights
w_k, has

    precision  Σ w_k n G_k + λ,      mean  M with  Σ w_k (n G_k + λ) (M − θ_k) = 0.

Statistics add, and those of all clients are a structure's of all data. Draws are from these; the
mean is of the sum of the clients' own matrices, which differs where Kronecker products are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor, nn
from torch.func import jacrev, vmap
from torch.nn import functional

from fedbary.aggregation.covariance import Structure
from fedbary.data.batches import scale_pixels
from fedbary.errors import SettingError
from fedbary.inference._steps import Flat, Steps
from fedbary.methods._method import Local, Tensors, weights_of
from fedbary.predictive.networks import evaluation
from fedbary.seeds import derive_seed

PROBES = 16
"""Steps of the power iteration; the mean of the last half counts."""

_TINY = 1e-12


def largest_curvature(
    theta: Flat,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    examples: int,
    generator: Generator,
) -> float:
    """Return the largest curvature of a loss by some weights, 0 where it is flat.

    Parameters
    ----------
    theta
        The weights, which are the same afterwards; their gradients are written over.
    loss
        Loss of a batch (x, y) at the weights as they are; nothing in it may be random.
    batches
        At most `PROBES` are taken.
    examples
        n, which sets the secants' length.
    generator
        The source of the first direction.
    """
    here, found = theta.value.clone(), []
    direction = torch.empty_like(here).normal_(generator=generator)
    direction /= direction.norm()
    length = 1 / math.sqrt(examples)
    for (x, y), _ in zip(batches, range(PROBES), strict=False):
        gradients = []
        for side in (length, -length):
            theta.value.copy_(here).add_(direction, alpha=side)
            theta.grad.zero_()
            loss(x, y).backward()
            gradients.append(theta.grad.clone())
        bent = (gradients[0] - gradients[1]) / (2 * length)
        norm = float(bent.norm())
        if not _TINY < norm < math.inf:
            break
        found.append(abs(float(direction @ bent)))
        direction, length = bent / norm, 1 / math.sqrt(examples * norm)
    theta.value.copy_(here)
    last = found[len(found) // 2 :]
    return sum(last) / len(last) if last else 0.0


def curvature_at_start(local: Local, theta: Flat) -> float:
    """Return the largest curvature of a client's mean NLL by some weights, where they stand."""
    training = replace(local.training, epochs=PROBES)
    job = replace(local, training=training, seed=derive_seed(local.seed, "curvature"))
    batches = Steps(job).batches

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return local.nll(local.model(x), y)

    with evaluation(local.model):
        return largest_curvature(theta, loss, batches, len(local.x), batches.noise)


_AT_A_TIME = 128
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
            for x, y in zip(local.x.split(_AT_A_TIME), local.y.split(_AT_A_TIME), strict=True):
                loss = local.nll(model(scale_pixels(x)), y) * len(x)
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
            features, slopes, outputs = _through(model, layer, scale_pixels(x))
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
