"""Variational layers: Gaussian weights, and a bias that is deterministic unless asked for.

A layer keeps its weight as `weight_mean` and `weight_log_var` (log of the variance). By these names
`fedbary.Posterior` recognises a Gaussian tensor. The bias is deterministic, as in the papers' code.
A local method can make it Gaussian, too (`gaussian_bias`). A forward pass samples inside of a block
`with drawing(module, generator):`; elsewhere it uses the means.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fedbary.errors import SettingError
from fedbary.gaussian import variance_power

Source = Generator | Callable[[Tensor], Tensor]
"""A source of noise: a generator, or a function that returns noise of a tensor's shape."""

_SOURCES: ContextVar[Mapping[nn.Module, Source | None]] = ContextVar("sources")


@contextmanager
def drawing(module: nn.Module, generator: Source | None) -> Iterator[None]:
    """Let every Gaussian layer within a module draw its weights from a generator.

    Each forward pass within the block is another draw. Blocks nest: an inner block applies to its
    own module; after it the outer one applies again. A block applies in the thread that enters it,
    and changes nothing in the module. Outside of all blocks a layer uses its means.

    Parameters
    ----------
    module
        A network of any kind, or one layer.
    generator
        Source of the noise, on the module's device; None: the layers use their means. A function is
        called for every draw, in the order of the layers.
    """
    within = dict.fromkeys(module.modules(), generator)
    token = _SOURCES.set({**_SOURCES.get({}), **within})
    try:
        yield
    finally:
        _SOURCES.reset(token)


def generator_of(layer: nn.Module) -> Source | None:
    """Return a layer's present source of noise; None if it uses its means."""
    return _SOURCES.get({}).get(layer)


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed PyTorch's default generators within the block; dropout draws from them.

    Afterwards their state is restored.

    Parameters
    ----------
    seed
        The seed.
    device
        Device whose generator is seeded beside the CPU's.
    """
    device = torch.device(device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


MIN_STD = 1e-15
"""Least standard deviation of an output, by which its gradient is divided: inputs may all be 0."""


def normal_like(tensor: Tensor, generator: Source | None) -> Tensor:
    """Return standard normal noise of a tensor's shape, dtype and device."""
    if generator is None or isinstance(generator, Generator):
        return torch.empty_like(tensor).normal_(generator=generator)
    return generator(tensor)


def _sampled_linear(
    x: Tensor, mean: Tensor, log_var: Tensor, bias: Tensor | None, noise: Source
) -> Tensor:
    """Return the result of `_SampledLinear` in operations that vmap supports."""
    var = x.square() @ variance_power(log_var, 1).t()
    std = var.clamp_min(MIN_STD**2).sqrt()
    return torch.addcmul(functional.linear(x, mean, bias), std, normal_like(std, noise))


class _SampledLinear(torch.autograd.Function):
    """x ↦ N(x Mᵀ + b, x² Vᵀ) sampled per output, with the gradients written out.

    The gradients share one exponential and need no other temporary array of the weight's size. So a
    variational step takes about as long as a plain one.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: Tensor,
        mean: Tensor,
        log_var: Tensor,
        bias: Tensor | None,
        generator: Generator,
    ) -> Tensor:
        var = variance_power(log_var, 1)
        x_squared = x.square()
        std = (x_squared @ var.t()).sqrt_().clamp_min_(MIN_STD)
        noise = normal_like(std, generator)
        plain = x @ mean.t() if bias is None else torch.addmm(bias, x, mean.t())
        out = plain.addcmul_(std, noise)
        ctx.save_for_backward(x, x_squared, mean, var, noise.div_(std))
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        x, x_squared, mean, var, noise_over_std = ctx.saved_tensors
        grad_var = grad * noise_over_std  # twice the gradient of the outputs' variance
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad @ mean).addcmul_(grad_var @ var, x)
        grad_log_var = torch.addmm(var, grad_var.t(), x_squared, beta=0, alpha=0.5).mul_(var)
        grad_bias = grad.sum(0) if ctx.needs_input_grad[3] else None
        return grad_x, grad.t() @ x, grad_log_var, grad_bias, None


class _Variational(nn.Module):
    """A layer of Gaussian weights and a bias, which is deterministic until `gaussian_bias`.

    Attributes
    ----------
    log_var_range
        Bounds to which log-variances are clamped for drawing; None for no bounds.
    """

    log_var_range: tuple[float, float] | None = None

    weight_mean: nn.Parameter
    weight_log_var: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, shape: tuple[int, ...], bias: bool) -> None:
        super().__init__()
        self.weight_mean = nn.Parameter(torch.empty(shape))
        self.weight_log_var = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[0])) if bias else None

    def __getattr__(self, name: str) -> Any:
        """Return the mean of a Gaussian bias as the `bias`."""
        renamed = name == "bias" and self.has_gaussian_bias
        return super().__getattr__("bias_mean" if renamed else name)

    def gaussian_bias(self) -> None:
        """Let the bias be Gaussian: `bias_mean`, and `bias_log_var` as the weights' mean one."""
        if (bias := self._parameters.get("bias")) is None:
            return
        del self.bias
        log_var = torch.full_like(bias, float(self.weight_log_var.detach().mean()))
        self.bias_mean = bias
        self.bias_log_var = nn.Parameter(log_var, requires_grad=bias.requires_grad)

    @property
    def has_gaussian_bias(self) -> bool:
        """Return whether the bias is Gaussian."""
        return "bias_log_var" in self._parameters

    def drawn_bias(self, noise: Source | None) -> Tensor | None:
        """Return a draw of a Gaussian bias, or the bias."""
        if not self.has_gaussian_bias:
            return self.bias
        std = variance_power(self.bias_log_var, 0.5)
        return torch.addcmul(self.bias_mean, std, normal_like(std, noise))

    @property
    def drawn_log_var(self) -> Tensor:
        """The log-variances that the layer draws with."""
        if self.log_var_range is None:
            return self.weight_log_var
        return self.weight_log_var.clamp(*self.log_var_range)


class VariationalLinear(_Variational):
    """A linear layer with weights N(mean, exp(log_var)) and a deterministic bias.

    Training samples the outputs, not the weights (local reparameterisation, Kingma, Salimans and
    Welling 2015): y = x Mᵀ + b + √(x² Vᵀ) ε, one ε per example and output.

    Parameters
    ----------
    in_features, out_features
        Sizes of the input and of the output.
    bias
        True: there is one.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__((out_features, in_features), bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output (…, out_features) for x (…, in_features)."""
        generator = generator_of(self)
        if generator is None:
            return functional.linear(x, self.weight_mean, self.bias)
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        sample = _SampledLinear.apply if isinstance(generator, Generator) else _sampled_linear
        bias = self.drawn_bias(generator)
        sampled: Tensor = sample(rows, self.weight_mean, self.drawn_log_var, bias, generator)
        return sampled if x.dim() == 2 else sampled.view(*x.shape[:-1], -1)

    def forward_with(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return outputs (samples, batch, out) under drawn weights (samples, out, in).

        x is (1 or samples, batch, in).
        """
        if x.shape[0] == 1:
            samples, out_features, in_features = weights.shape
            flat = functional.linear(x[0], weights.reshape(-1, in_features))
            out = flat.view(-1, samples, out_features).transpose(0, 1)
            return out if self.bias is None else out + self.bias
        if self.bias is None:
            return x @ weights.transpose(1, 2)
        return torch.baddbmm(self.bias.view(1, 1, -1), x, weights.transpose(1, 2))


class VariationalConv2d(_Variational):
    """A 2-d convolution with weights N(mean, exp(log_var)) and a deterministic bias.

    Training draws one weight per step: W = mean + exp(log_var / 2) ε.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode
        As for `torch.nn.Conv2d`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
    ) -> None:
        kernel = _pair(kernel_size)
        super().__init__((out_channels, in_channels // groups, *kernel), bias)
        self.stride, self.dilation, self.groups = stride, dilation, groups
        self.padding, self.padding_mode = padding, padding_mode
        sides = [(0, 0), (0, 0)]
        if padding == "same":
            lost = [step * (size - 1) for step, size in zip(_pair(dilation), kernel, strict=True)]
            sides = [(total // 2, total - total // 2) for total in lost]
        elif not isinstance(padding, str):
            sides = [(side, side) for side in _pair(padding)]
        self._borders = [*sides[1], *sides[0]]

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (batch, out_channels, h, w) for x (batch, in_channels, H, W)."""
        generator = generator_of(self)
        weight: Tensor = self.weight_mean
        bias: Tensor | None = self.bias
        if generator is not None:
            bias = self.drawn_bias(generator)
            std = variance_power(self.drawn_log_var, 0.5)
            weight = torch.addcmul(weight, std, normal_like(std, generator))
        return self._convolve(x, weight, bias, self.groups)

    def forward_with(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return outputs (samples, batch, out, h, w) under drawn weights (samples, out, in, k, k).

        x is (1 or samples, batch, in, H, W); all draws are one grouped convolution.
        """
        samples, out_channels = weights.shape[:2]
        if self.groups > 1:
            x = x.expand(samples, *x.shape[1:])
        draws, batch = x.shape[:2]
        stacked = x.transpose(0, 1).reshape(batch, -1, *x.shape[3:])
        bias = None if self.bias is None else self.bias.repeat(samples)
        flat = weights.reshape(-1, *weights.shape[2:])
        out = self._convolve(stacked, flat, bias, draws * self.groups)
        return out.view(batch, samples, out_channels, *out.shape[2:]).transpose(0, 1)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = functional.pad(x, self._borders, self.padding_mode), 0
        return functional.conv2d(x, weight, bias, self.stride, padding, self.dilation, groups)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


VARIATIONAL = (VariationalLinear, VariationalConv2d)


def sample_weights(
    layer: VariationalLinear | VariationalConv2d, samples: int, generator: Generator | None
) -> Tensor:
    """Draw (samples, *weight shape) from a layer's posterior."""
    std = variance_power(layer.drawn_log_var, 0.5)
    noise = std.new_empty((samples, *std.shape)).normal_(generator=generator)
    return torch.addcmul(layer.weight_mean, std, noise)


def reset_layer(
    layer: nn.Module, init_log_var: float, generator: Generator, he: bool = False
) -> None:
    """Initialise a layer's tensors from `generator`; log-variances are constant.

    The default is that of the papers' code: means of variational weights from N(0, 1/fan_in); plain
    weights and all biases uniform in ±1/√fan_in, PyTorch's default. `he` follows He et al. 2015:
    means and plain weights from N(0, 2/fan_in), which preserves the scale of ReLU outputs, and
    biases 0.
    """
    weight = layer.weight_mean if isinstance(layer, VARIATIONAL) else layer.weight
    assert isinstance(weight, Tensor)
    bound = 1 / math.sqrt(weight[0].numel())
    with torch.no_grad():
        if he:
            weight.normal_(0.0, math.sqrt(2) * bound, generator=generator)
        elif isinstance(layer, VARIATIONAL):
            weight.normal_(0.0, bound, generator=generator)
        else:
            weight.uniform_(-bound, bound, generator=generator)
        if isinstance(layer, VARIATIONAL):
            layer.weight_log_var.fill_(init_log_var)
        if isinstance(layer.bias, Tensor):
            if he:
                layer.bias.zero_()
            else:
                layer.bias.uniform_(-bound, bound, generator=generator)


def variational(
    module: nn.Module,
    last: int | None = None,
    names: Collection[str] | None = None,
    init_log_var: float = -7.0,
) -> nn.Module:
    """Return a copy of a module in which some Linear and Conv2d layers have Gaussian weights.

    A converted layer keeps its name, its bias and its other arguments. Its weight becomes the mean
    of N(weight, exp(init_log_var)): `<name>.weight_mean` and `<name>.weight_log_var` replace
    `<name>.weight`. The layer samples inside of `fedbary.variational.layers.drawing`.

    Parameters
    ----------
    module
        A network of any kind. It is not changed.
    last
        Number of layers to convert, 0 for none. They are the last Linear and Conv2d layers, in the
        module's order of registration.
    names
        Names of layers to convert instead, as in `module.named_modules()`.
    init_log_var
        The natural logarithm of every weight's variance.

    Raises
    ------
    SettingError
        If there are fewer layers than `last`, a name is not that of a Linear or Conv2d layer, or
        another module shares the weight of a layer.
    ValueError
        If not exactly one of `last` and `names` is given.
    """
    if (last is None) == (names is None):
        raise ValueError("variational takes either last, a number of layers, or names of layers")
    module = copy.deepcopy(module)
    layers = convertible_layers(module)
    if last is not None:
        if last not in range(len(layers) + 1):
            allowed = f"a whole number from 0 to {len(layers)}, the layers of the network"
            raise SettingError("bayesian_layers", last, allowed)
        names = list(layers)[len(layers) - last :]
    owners: defaultdict[nn.Parameter, set[nn.Module]] = defaultdict(set)
    for owner in module.modules():
        for parameter in owner.parameters(recurse=False):
            owners[parameter].add(owner)
    replaced: dict[nn.Module | None, nn.Module] = {}
    for name in names or ():
        if name not in layers:
            raise SettingError("layer", name, ", ".join(layers))
        layer = layers[name]
        if isinstance(layer, VARIATIONAL):
            continue
        if len(owners[layer.weight]) > 1:
            raise SettingError("layer", name, "a layer that shares its weight with no other")
        replaced[layer] = _gaussian(layer, init_log_var)
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if child in replaced:
                setattr(parent, name, replaced[child])
    return replaced.get(module, module)


def gaussian_layers(module: nn.Module) -> dict[str, VariationalLinear | VariationalConv2d]:
    """Return the variational layers of a module by name, in the order of registration."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, VARIATIONAL)}


def convertible_layers(module: nn.Module) -> dict[str, Any]:
    """Return the layers that are or can be variational, by name, in the order of registration."""
    return {name: layer for name, layer in module.named_modules() if _can_be_gaussian(layer)}


def _can_be_gaussian(layer: nn.Module) -> bool:
    """Return whether a layer is variational or can be replaced by a variational one.

    Subclasses are not converted, because other modules may read their weights (attention does). Nor
    are layers whose weight is computed from other parameters.
    """
    plain = type(layer) in (nn.Linear, nn.Conv2d) and "weight" in layer._parameters
    return plain or isinstance(layer, VARIATIONAL)


def _gaussian(
    layer: nn.Linear | nn.Conv2d, init_log_var: float
) -> VariationalLinear | VariationalConv2d:
    """Return the variational layer that has a plain one's parameters as means and bias."""
    made: VariationalLinear | VariationalConv2d
    if isinstance(layer, nn.Linear):
        made = VariationalLinear(layer.in_features, layer.out_features)
    else:
        made = VariationalConv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,  # type: ignore[arg-type]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            layer.groups,
            padding_mode=layer.padding_mode,
        )
    weight, bias = layer._parameters["weight"], layer._parameters["bias"]
    assert weight is not None
    log_var = torch.full_like(weight, init_log_var)
    made.weight_mean, made.bias = weight, bias
    made.weight_log_var = nn.Parameter(log_var, requires_grad=weight.requires_grad)
    return made.train(layer.training)
