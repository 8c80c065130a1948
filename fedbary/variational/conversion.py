"""Gaussian weights for any network: variational layers in place of its Linear and Conv2d ones."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from fedbary.errors import SettingError
from fedbary.variational.layers import VARIATIONAL, VariationalConv2d, VariationalLinear


def variational(
    module: nn.Module,
    last: int | None = None,
    names: Collection[str] | None = None,
    init_log_var: float = -7.0,
) -> nn.Module:
    """Return a copy of a module in which some Linear and Conv2d layers have Gaussian weights.

    A converted layer keeps its name, its bias and its other arguments. Its weight becomes the mean
    of N(weight, exp(init_log_var)): `<name>.weight_mean` and `<name>.weight_log_var` replace
    `<name>.weight`. The layer samples inside of `fedbary.variational.noise.drawing`.

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
