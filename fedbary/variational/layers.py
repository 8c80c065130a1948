"""Variational layers: Gaussian weights, and a bias that is deterministic unless asked for.

A layer keeps its weight as `weight_mean` and `weight_log_var` (log of the variance). By these names
`fedbary.Posterior` recognises a Gaussian tensor. The bias is deterministic, as in the papers' code.
A local method can make it Gaussian, too (`gaussian_bias`). A forward pass samples inside of a block
`with drawing(module, generator):`; elsewhere it uses the means.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fedbary.gaussian import variance_power
from fedbary.variational.noise import Source, generator_of

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
