"""A layer that gets new outputs: statistics of the old ones, that say nothing of the new ones.

The precision of the old rows and the slope along them stay. Those of a new row, also with any other
row, are 0. So the posterior's marginal over the old rows stays, and a new row has its prior alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedbary.aggregation.covariance import packed, unpacked
from fedbary.aggregation.structures import Statistics, Structure


def with_outputs(held: Statistics, old: Structure, places: Sequence[int]) -> dict[str, Tensor]:
    """Return an old structure's statistics for the outputs of `places`, in their order.

    Parameters
    ----------
    held
        Its statistics, and perhaps vectors (outputs · inputs,) of other names, such as slopes.
    old
        The structure; one that `grows`.
    places
        For each output its place among the old ones, −1 for a new one.
    """
    assert old.grows
    new = type(old)(len(places), old.inputs)
    return {name: _laid_out(t, old, new, name, places) for name, t in held.items()}


def _laid_out(
    tensor: Tensor, old: Structure, new: Structure, name: str, places: Sequence[int]
) -> Tensor:
    after = new.sizes().get(name, new.outputs * new.inputs)
    if len(tensor) == after:
        return tensor
    there = torch.tensor([place >= 0 for place in places])
    rows = [place for place in places if place >= 0]
    if (side := old.triangles().get(name)) is None:
        vectors = tensor.new_zeros(new.outputs, after // new.outputs)
        vectors[there] = tensor.view(old.outputs, -1)[rows]
        return vectors.flatten()
    each = side // old.outputs
    index = (torch.tensor(rows)[:, None] * each + torch.arange(each)).flatten()
    among = there.repeat_interleave(each).nonzero()[:, 0]
    matrix = tensor.new_zeros(len(places) * each, len(places) * each)
    matrix[among[:, None], among] = unpacked(tensor, side)[index[:, None], index]
    return packed(matrix)
