"""Common tools of predictions: batches, evaluation mode, several networks on one batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedbary.data.batches import inputs

Network = Mapping[str, Tensor]
"""Tensors by name that replace a model's own."""

Answers = Callable[[Tensor], Tensor]
"""Takes a batch, and returns the networks' answers, (networks, batch, outputs)."""


@runtime_checkable
class Headed(Protocol):
    """A network that runs its plain layers once for several drawn networks."""

    def can_split(self) -> bool:
        """Return whether plain layers are followed by variational ones alone, at least one."""

    def trunk(self, x: Tensor) -> Tensor:
        """Return the features that the plain layers make of a batch."""

    def head_logits(self, features: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Return logits (networks, batch, classes) of features under weights drawn for each layer.

        `weights` holds for each variational layer, in order, (networks, *weight shape).
        """


@runtime_checkable
class Parted(Protocol):
    """A network that names the part that all drawn networks share."""

    def trunk_and_head(self) -> tuple[Callable[[Tensor], Tensor] | None, nn.Module]:
        """Return the leading part of point weights (None for none), and the rest."""


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode within the block; then restore each part's mode."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def device_of(model: nn.Module) -> torch.device:
    """Return the device that a model's tensors lie on; the CPU for one without tensors."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def batches(model: nn.Module, x: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Yield the inputs in parts, as the model takes them, on its device."""
    device = device_of(model)
    for batch in x.split(batch_size):
        yield inputs(batch.to(device))


def answers_of(model: nn.Module, networks: Sequence[Network], batch: Tensor) -> Tensor:
    """Return what the networks answer to a batch, (networks, batch, classes).

    If they differ only in the last layer, the layers before it run once for all.
    """
    names = {name.rpartition(".")[0] for network in networks for name in network}
    if len(networks) == 1 or len(names) != 1:
        return torch.stack([functional_call(model, dict(n), (batch,)) for n in networks])
    (name,), calls = names, []

    def seen(_: nn.Module, given: Any, named: Any, answer: Tensor) -> None:
        calls.append((given, named, answer))

    with model.get_submodule(name).register_forward_hook(seen, with_kwargs=True):
        first = functional_call(model, dict(networks[0]), (batch,))
    if [answer is first for _, _, answer in calls] == [True]:
        given, named, _ = calls[0]
        model = model.get_submodule(name)
        networks = [{k.removeprefix(f"{name}."): v for k, v in n.items()} for n in networks]
    else:
        given, named = (batch,), {}
    others = [functional_call(model, dict(n), given, named) for n in networks[1:]]
    return torch.stack([first, *others])
