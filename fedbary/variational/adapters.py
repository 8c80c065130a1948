"""Low-rank adapters (LoRA) of any network, by peft: W + s B A, of which B trains.

A is drawn with orthonormal rows, and is frozen. So ΔW = s B A is linear in B, and ‖ΔW‖ = s ‖B‖. A
rule that is linear, or built on KL, W2 or Euclidean distances, aggregates the clients' ΔW by
aggregating their B.

Reference: Hu et al. 2022, LoRA; Sun et al. 2024, FFA-LoRA, for the frozen A.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbary.errors import SettingError
from fedbary.parts.imports import library
from fedbary.texts import names_in
from fedbary.variational.layers import seeded, variational

EXTRA = "adapters"

EVERY = "all"
"""Value of `targets` for every layer that can have an adapter."""

GRID = 2.0**-16
"""Grid of the entries of A, so that rounding on different machines does not change its digest."""

_NAME = "default"
"""peft's name of an adapter without a name."""


@dataclass(frozen=True)
class Adapters:
    """Choice of a network's adapters.

    Attributes
    ----------
    rank : int
        r, the columns of B.
    targets : str
        ``all``, or names of layers with commas between; a name includes all layers within it.
    alpha : float
        s = alpha/r.
    """

    rank: int = 8
    targets: str = EVERY
    alpha: float = 8.0


def with_adapters(body: nn.Module, how: Adapters, seed: int) -> nn.Module:
    """Return a network with adapters; nothing else trains.

    B is 0, so the outputs are those of the given network. A is drawn from the seed. The given
    network still works as before; the two share its tensors, which are frozen.

    Parameters
    ----------
    body : nn.Module
        A network of any kind. Its Linear and Conv2d layers can have adapters, except for grouped or
        dilated convolutions and layers whose weights other modules read.
    how : Adapters
        Rank, layers and scale.
    seed : int
        Seed of A, the same at every site.

    Raises
    ------
    SettingError
        If peft is not installed, no layer matches one of the targets, or a full rank is lower.
    """
    peft = library("peft", EXTRA, "adapters", "lora")
    layers = _chosen(body, how)
    shared = {id(t): t for t in [*body.parameters(), *body.buffers()]}
    adapted = copy.deepcopy(body, shared).requires_grad_(False)
    exactly = "|".join(map(re.escape, layers))
    config = peft.LoraConfig(r=how.rank, lora_alpha=how.alpha, target_modules=exactly)
    with seeded(seed):
        adapted = peft.inject_adapter_in_model(config, adapted).requires_grad_(False)
        for layer in _adapted(adapted).values():
            _orthonormalise(layer.lora_A[_NAME].weight)
            layer.lora_B.requires_grad_(True)
    found: nn.Module = adapted
    return found


def gaussian_adapters(network: nn.Module, last: int, init_log_var: float) -> None:
    """Give the B of the last adapters Gaussian weights, N(B, exp(init_log_var)), in place."""
    names = adapter_names(network)
    for name in names[len(names) - last :]:
        place = f"{name}.lora_B.{_NAME}"
        plain = network.get_submodule(place)
        network.set_submodule(place, variational(plain, 1, init_log_var=init_log_var))


def adapter_names(network: nn.Module) -> list[str]:
    """Return the names of the layers that have an adapter, in the order of registration."""
    return list(_adapted(network))


def merged(network: nn.Module) -> nn.Module:
    """Return a copy without adapters, with weights W + ΔW; a Gaussian B is replaced by its mean."""
    network = copy.deepcopy(network)
    for name, layer in _adapted(network).items():
        plain = copy.deepcopy(layer.base_layer)
        with torch.no_grad():
            plain.weight.add_(_product(layer))
        network.set_submodule(name, plain)
    return network


@torch.no_grad()
def _orthonormalise(weight: Tensor) -> None:
    """Fill a factor A (r, …) with a random r×D of orthonormal rows, to the grid."""
    flat = weight.flatten(1)
    columns, triangle = torch.linalg.qr(torch.randn(flat.shape[::-1], dtype=torch.float64))
    rows = (columns * triangle.diagonal().sign()).t()
    weight.copy_(((rows / GRID).round() * GRID).view(weight.shape))


def _product(layer: Any) -> Tensor:
    down, up = layer.lora_A[_NAME], layer.lora_B[_NAME]
    mean = up.weight_mean if hasattr(up, "weight_mean") else up.weight
    product: Tensor = mean.flatten(1) @ down.weight.flatten(1)
    return layer.scaling[_NAME] * product.view(layer.base_layer.weight.shape)


def _adapted(network: nn.Module) -> dict[str, Any]:
    """Return the layers with adapters: those that hold two factors and a base."""
    parts = network.named_modules()
    return {name: part for name, part in parts if hasattr(part, "lora_B") and part.lora_B}


def _chosen(body: nn.Module, how: Adapters) -> list[str]:
    """Return the names of the layers that get an adapter, after a check of their ranks."""
    layers = {name: layer for name, layer in _readable(body) if name and _takes(layer)}
    targets = names_in(how.targets)
    for target in targets:
        if target != EVERY and not any(_is_meant(name, target) for name in layers):
            raise SettingError("targets", target, f"{EVERY}, or of {_listed(list(layers))}")
    names = [name for name in layers if any(_is_meant(name, target) for target in targets)]
    for name in names:
        weight = layers[name].weight
        assert isinstance(weight, Tensor)
        full = min(weight.flatten(1).shape)
        if how.rank > full:
            allowed = f"up to {full}, the full rank of {name}, or targets without it"
            raise SettingError("rank", how.rank, allowed)
    return names


def _readable(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules by name, but for those whose weights PyTorch's attention reads itself."""
    yield path, module
    if not isinstance(module, nn.MultiheadAttention | nn.TransformerEncoderLayer):
        for name, child in module.named_children():
            yield from _readable(child, f"{path}.{name}" if path else name)


def _takes(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        plain = layer.groups == 1 and set(layer.dilation) == {1}
        return plain and layer.padding_mode == "zeros" and "weight" in layer._parameters
    return type(layer) is nn.Linear and "weight" in layer._parameters


def _is_meant(name: str, target: str) -> bool:
    """Return whether a target is a sequence of whole parts of a layer's name."""
    return target == EVERY or bool(target) and f".{target}." in f".{name}."


def _listed(names: Sequence[str], most: int = 40) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none: it has no layer that takes one") + more
