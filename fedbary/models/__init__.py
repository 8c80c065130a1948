"""Networks: plain PyTorch, a file of this package each, found by its name.

A network is a module of this package whose name has no leading underscore. It defines

``Parameters``
    a frozen dataclass of the network's parameters, with defaults;
``make(shape, outputs, parameters)``
    the network, an ``nn.Module``, for inputs of a shape without the batch, (C, H, W) or (D,), and
    with so many outputs, its weights drawn from PyTorch's default generator;
``LAYERS``
    only where it has few: the names of its Linear and Conv2d layers, of which the default of
    `bayesian_layers` makes no more Gaussian;
``reset(model, init_log_var, seed)``
    only where the initialisation depends on which layers are Gaussian: draws every tensor anew.

Nothing else has to be told. A network of one's own needs no file here: ``package.module:factory``
names a function that is called as ``factory(shape, outputs)``. Parameters that it freezes stay
frozen, see `fedbary.variational.frozen`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fedbary.errors import SettingError
from fedbary.parts.imports import own_function, said
from fedbary.parts.registry import is_factory, modules
from fedbary.variational.frozen import keep_frozen
from fedbary.variational.layers import seeded, variational

MODELS = modules("models")
"""Names of the networks."""


def build(
    name: str,
    shape: Sequence[int],
    outputs: int,
    seed: int,
    bayesian_layers: int = 0,
    init_log_var: float = -7.0,
    parameters: Mapping[str, Any] | None = None,
    answer: tuple[int, ...] = (),
) -> nn.Module:
    """Return a network with its last layers variational, initialised from a seed.

    Parameters
    ----------
    name
        One of `MODELS`, or ``package.module:factory``.
    shape
        Shape of an input without the batch.
    outputs
        Number of outputs.
    seed
        Seed of the initial weights. PyTorch's default generator is left as it was.
    bayesian_layers, init_log_var
        Number of last layers with Gaussian weights, and their initial log-variance; see
        `fedbary.variational.layers.variational`.
    parameters
        Values for the network's `Parameters`, by name; names that it has not are passed over.
    answer
        Shape of an answer without the batch, by default (outputs,).

    Raises
    ------
    SettingError
        If there is no such network, or it does not fit shape and outputs.
    """
    part = None if is_factory(name) else _module(name)
    with seeded(seed):
        plain = (
            _own(name, shape, outputs, answer or (outputs,))
            if part is None
            else _ours(part, shape, outputs, parameters or {})
        )
    model = variational(plain, bayesian_layers, init_log_var=init_log_var)
    if part is not None and hasattr(part, "reset"):
        part.reset(model, init_log_var, seed)
    return keep_frozen(model)


def _module(name: str) -> ModuleType:
    if name not in MODELS:
        raise SettingError("model", name, f"{', '.join(MODELS)}, or package.module:factory")
    return import_module(f"{__name__}.{name}")


def _ours(
    part: ModuleType, shape: Sequence[int], outputs: int, parameters: Mapping[str, Any]
) -> nn.Module:
    known = {field.name for field in fields(part.Parameters)}
    values = {name: value for name, value in parameters.items() if name in known}
    plain: nn.Module = part.make(shape, outputs, part.Parameters(**values))
    return plain


def _own(name: str, shape: Sequence[int], outputs: int, answer: tuple[int, ...]) -> nn.Module:
    """Import a factory, call it, and try the network on one input of zeros."""
    factory = own_function("model", name, "factory")
    try:
        plain = factory(tuple(shape), outputs)
    except Exception as error:  # noqa: BLE001 - code of others raises many kinds
        allowed = f"a function that can be called as factory({tuple(shape)}, {outputs})"
        raise SettingError("model", name, f"{allowed} ({said(error)})") from None
    if not isinstance(plain, nn.Module):
        allowed = f"a function that returns an nn.Module, not a {type(plain).__name__}"
        raise SettingError("model", name, allowed)
    plain = _unwrapped(plain)
    try:
        with torch.no_grad():
            answered = plain.eval()(torch.zeros(1, *shape))
    except Exception as error:  # noqa: BLE001
        allowed = f"a network that answers inputs of shape (1, {', '.join(map(str, shape))})"
        raise SettingError("model", name, f"{allowed} ({said(error)})") from None
    if not isinstance(answered, torch.Tensor):
        allowed = f"a network that answers with one tensor, not a {type(answered).__name__}"
        raise SettingError("model", name, allowed)
    if (found := tuple(answered.shape)) != (1, *answer):
        allowed = f"a network whose answer to one input has shape {(1, *answer)}, not {found}"
        raise SettingError("model", name, allowed)
    total = answered.sum(1)
    if outputs > 1 and not (answered < 0).any() and total.allclose(torch.ones_like(total)):
        raise SettingError("model", name, "a network that answers with logits, without a softmax")
    return plain.train()


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return a network without the wrappers that spread a batch over devices."""
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return _unwrapped(module.module)
    for name, child in module.named_children():
        if (bare := _unwrapped(child)) is not child:
            setattr(module, name, bare)
    return module
