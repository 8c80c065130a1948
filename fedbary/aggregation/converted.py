"""Tensors that are another kind of number than they are wanted as, converted on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbary.aggregation.reals import flat_reals


@dataclass(frozen=True, eq=False)
class Converted(Mapping[str, Tensor]):
    """Named tensors, some of which are what a function makes of those that are held.

    Indexing returns a tensor whole. `piece_of` never holds more of it than a piece.

    Parameters
    ----------
    held : Mapping[str, Tensor]
        The tensors as they are.
    functions : mapping of str to callable
        For some of the names an element-wise function that makes a tensor what it is wanted as.
    """

    held: Mapping[str, Tensor]
    functions: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.held[name]
        return self.functions[name](tensor) if name in self.functions else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


def piece_of(tensors: Mapping[str, Tensor], name: str, size: int) -> Callable[[int], Tensor]:
    """Return what gives the i-th piece, of a size, of a tensor's numbers: converted when asked."""
    if isinstance(tensors, Converted) and name in tensors.functions:
        held, function = flat_reals(tensors.held[name]).split(size), tensors.functions[name]
        return lambda i: function(held[i])
    return flat_reals(tensors[name]).split(size).__getitem__


def kind_of(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor, torch.dtype]:
    """Return a tensor of the shape of one of these, and the dtype of that one."""
    if isinstance(tensors, Converted) and name in tensors.functions:
        held = tensors.held[name]
        return held, tensors.functions[name](held.new_ones(1)).dtype
    return tensors[name], tensors[name].dtype
