"""Tensors in another unit than the wanted one, converted on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbary.aggregation.reals import flat_reals


@dataclass(frozen=True, eq=False)
class Converted(Mapping[str, Tensor]):
    """Named tensors, some of which a function converts on access.

    Indexing returns a tensor whole. `piece_of` never holds more of it than a piece.

    Parameters
    ----------
    held : Mapping[str, Tensor]
        The tensors before conversion.
    functions : mapping of str to callable
        An element-wise function for each name whose tensor is to be converted.
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
    """Return the function that gives the i-th piece of a tensor, converted; pieces have a size."""
    if isinstance(tensors, Converted) and name in tensors.functions:
        held, function = flat_reals(tensors.held[name]).split(size), tensors.functions[name]
        return lambda i: function(held[i])
    return flat_reals(tensors[name]).split(size).__getitem__


def kind_of(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor, torch.dtype]:
    """Return a tensor of the shape of a named one, and the dtype after conversion."""
    if isinstance(tensors, Converted) and name in tensors.functions:
        held = tensors.held[name]
        return held, tensors.functions[name](held.new_ones(1)).dtype
    return tensors[name], tensors[name].dtype
