"""Frozen parts of a network: they stay as they are, in evaluation mode, and never travel.

A part is frozen if it has weights and none of them trains (``requires_grad`` is False). Its buffers
and inner modules belong to it. A normalisation layer without weights belongs to the layer before
it. `keep_frozen` takes frozen tensors out of the network's state dict. Messages and checkpoints
then hold only the tensors that train, and a digest of the frozen ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedbary.errors import SettingError
from fedbary.gaussian import LOG_VAR_SUFFIX, MEAN_SUFFIX

FROZEN_KEY = "frozen"
"""The entry of a message's config with the digest of the frozen tensors."""

_NAMES = "_fedbary_frozen"


class Hash(Protocol):
    """A hash of hashlib."""

    def update(self, data: Any, /) -> None:
        """Take more bytes."""


class _Kept(nn.Module):
    """A module that stays in evaluation mode, with all that it holds."""

    def train(self, mode: bool = True) -> Any:
        """Stay in evaluation mode."""
        return super().train(False)


def keep_frozen(network: nn.Module) -> nn.Module:
    """Let frozen parts stay in evaluation mode, and take their tensors out of the state dict.

    State dicts load with and without them. Call it at the server and at every site, when it is
    settled which parts train.

    Parameters
    ----------
    network : nn.Module
        Changed in place, and returned.

    Raises
    ------
    SettingError
        If nothing of it trains.
    """
    if _is_frozen(network):
        allowed = "a network of which something trains; requires_grad is False everywhere"
        raise SettingError("model", type(network).__name__, allowed)
    if hasattr(network, _NAMES):
        return network
    names = []
    for path, part in _parts(network, []):
        if not isinstance(part, _Kept):
            part.__class__ = type(type(part).__name__, (_Kept, type(part)), {})
        part.eval()
        names += [f"{path}{name}" for name, t in part.state_dict().items() if isinstance(t, Tensor)]
    if found := dict.fromkeys([*names, *_alone(network)]):
        setattr(network, _NAMES, tuple(found))
        network.register_state_dict_post_hook(_hide)
        network.register_load_state_dict_pre_hook(_fill)
    return network


def frozen_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that `keep_frozen` took out of a network's state dict."""
    found = {}
    for name in getattr(network, _NAMES, ()):
        path, _, last = name.rpartition(".")
        found[name] = getattr(network.get_submodule(path), last).detach()
    return found


def frozen_config(network: nn.Module) -> dict[str, str]:
    """Return a message's entries on a network's frozen tensors: their digest, if there are any."""
    if not (tensors := frozen_tensors(network)):
        return {}
    found = hashlib.blake2b(digest_size=16)
    hash_tensors(found, tensors)
    return {FROZEN_KEY: found.hexdigest()}


def require_same_frozen(network: nn.Module, config: Mapping[str, Any]) -> None:
    """Raise a SettingError unless frozen tensors are those that a message's config names."""
    own, told = frozen_config(network).get(FROZEN_KEY), config.get(FROZEN_KEY)
    if own == told:
        return
    if told is None:
        allowed = "the digest of the server's frozen weights in the messages' config"
        raise SettingError(FROZEN_KEY, "nothing", allowed)
    allowed = f"frozen weights as of the run's model, digest {told}"
    raise SettingError("model", f"digest {own}" if own else "nothing frozen", allowed)


def hash_tensors(into: Hash, tensors: Mapping[str, Tensor]) -> None:
    """Add names, shapes, types and bytes of tensors to a hash."""
    for name, tensor in tensors.items():
        into.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        held = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        into.update(held.numpy().data)


def _parts(
    module: nn.Module, before: list[bool], path: str = ""
) -> Iterator[tuple[str, nn.Module]]:
    """Yield the largest frozen parts; `before` ends with True if the layer before is frozen."""
    for name, child in module.named_children():
        own = list(child.parameters(recurse=False))
        follows = isinstance(child, _NormBase) and not own and before[-1:] == [True]
        if follows or _is_frozen(child):
            before.append(True)
            yield f"{path}{name}.", child
            continue
        if own:
            before.append(False)
        yield from _parts(child, before, f"{path}{name}.")


def _alone(network: nn.Module) -> Iterator[str]:
    """Yield the weights that do not train; a Gaussian's mean and log-variance go together."""
    named = dict(network.named_parameters())
    for name in named:
        pair = {name}
        for one, other in ((MEAN_SUFFIX, LOG_VAR_SUFFIX), (LOG_VAR_SUFFIX, MEAN_SUFFIX)):
            if name.endswith(one):
                pair.add(name.removesuffix(one) + other)
        if not all(named[one].requires_grad for one in pair & named.keys()):
            yield name


def _is_frozen(module: nn.Module) -> bool:
    weights = list(module.parameters())
    return bool(weights) and not any(weight.requires_grad for weight in weights)


def _hide(module: nn.Module, state: MutableMapping[str, Any], prefix: str, _metadata: Any) -> None:
    for name in getattr(module, _NAMES):
        state.pop(prefix + name, None)


def _fill(module: nn.Module, state: MutableMapping[str, Any], prefix: str, *_others: Any) -> None:
    for name, tensor in frozen_tensors(module).items():
        state.setdefault(prefix + name, tensor)
