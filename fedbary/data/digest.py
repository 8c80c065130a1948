"""A digest of a run's data, for comparison with other data."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbary.errors import SettingError

HASH_BYTES = 8
"""Bytes of an input's hash."""


@dataclass(frozen=True, eq=False)
class Digest:
    """Digest of data: their layout in words, and a hash of each input, in order.

    Attributes
    ----------
    said : mapping
        ``rows``, the ``layout`` that sites agree on, the ``type`` of the inputs, their ``least``
        and ``most`` value (for tables by column; None for tokens). Two hashes: ``content`` of
        inputs and targets in their order, ``scored`` of those that score models.
    rows : Tensor
        The inputs' hashes, (N,) int64.
    trained : Tensor
        Mask of those that are trained on, (N,) bool.
    groups : Tensor or None
        The group of each, (N,) int64, see `fedbary.data.grouping`; None where each stands alone.
    """

    said: Mapping[str, Any]
    rows: Tensor
    trained: Tensor
    groups: Tensor | None = None

    def require_same(self, now: Digest, name: str) -> None:
        """Raise a SettingError that names the difference unless data are those of this digest.

        Parameters
        ----------
        now : Digest
            Digest of the data as they are now.
        name : str
            Their name in errors.
        """
        if all(self.said[key] == now.said[key] for key in ("content", "scored")):
            return
        if len(self.rows) != len(now.rows):
            raise _other(name, f"other rows, {len(now.rows)} in place of {len(self.rows)}")
        if self.said["layout"] != now.said["layout"]:
            raise _other(name, "other columns or classes")
        if not torch.equal(self.rows.sort().values, now.rows.sort().values):
            changed = int((self.rows != now.rows).sum())
            raise _other(name, f"{changed} of {len(now.rows)} rows are others")
        same = torch.equal(self.rows, now.rows)
        raise _other(name, "other targets or test data" if same else "another order of rows")

    def require_scored(self, x: Tensor, y: Tensor, name: str) -> None:
        """Raise a SettingError unless inputs and targets are those that scored models."""
        if content_hash(row_hashes(x), y) != self.said["scored"]:
            raise _other(name, "other test data, of which some may have been trained on")

    def trained_on(self, x: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return which inputs (N, …) equal a training input, or are of its group, (N,) bool."""
        found = torch.isin(row_hashes(x), self.rows[self.trained])
        if groups is not None and self.groups is not None:
            found |= torch.isin(groups, self.groups[self.trained])
        return found


def digest_of(
    x: Tensor,
    y: Tensor,
    scored: tuple[Tensor, Tensor],
    trained: Tensor,
    layout: Mapping[str, Any],
    groups: Tensor | None = None,
) -> Digest:
    """Return the digest of inputs (N, …) and targets (N,).

    Parameters
    ----------
    x, y : Tensor
        Inputs and targets, in their order.
    scored : tuple of Tensor
        Inputs and targets that score models; they may be among the others.
    trained : Tensor
        The numbers of the inputs that are trained on.
    layout : mapping
        Layout that all sites share.
    groups : Tensor or None
        The inputs' groups.
    """
    rows = row_hashes(x)
    mask = torch.zeros(len(rows), dtype=torch.bool)
    mask[trained] = True
    least, most = _range(x)
    said = {
        "rows": len(x),
        "layout": json.loads(json.dumps({**layout})),
        "type": str(x.dtype).removeprefix("torch."),
        "least": least,
        "most": most,
        "content": content_hash(rows, y),
        "scored": content_hash(row_hashes(scored[0]), scored[1]),
    }
    return Digest(said, rows, mask, groups)


def content_hash(rows: Tensor, y: Tensor) -> str:
    """Return the hash of inputs' hashes and targets, in their order."""
    found = hashlib.blake2b(rows.numpy().tobytes(), digest_size=16)
    found.update(y.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def checksum(x: Tensor, y: Tensor) -> str:
    """Return 32 bits of a hash of inputs and targets in any order, as hexadecimal digits."""
    pairs = np.stack([row_hashes(x).numpy(), row_hashes(y[:, None]).numpy()], 1)
    held = pairs[np.lexsort(pairs.T)].tobytes()
    return hashlib.blake2b(held, digest_size=4).hexdigest()


def row_hashes(x: Tensor) -> Tensor:
    """Return a hash of each input of (N, …), (N,) int64; −0 is 0."""
    held = x.cpu().flatten(1)
    held = (held + 0.0 if held.is_floating_point() else held).contiguous()
    found = b"".join(
        hashlib.blake2b(memoryview(row), digest_size=HASH_BYTES).digest() for row in held.numpy()
    )
    return torch.frombuffer(bytearray(found), dtype=torch.int64) if found else torch.zeros(0).long()


def repeats(x: Tensor, seen: Tensor) -> int:
    """Return how many inputs (N, …) have a hash among those that were seen, or an earlier one's.

    Return 0 if rows of a table would be equal as often by chance, see `_equal_by_chance`.
    """
    rows = row_hashes(x)
    found = len(rows) - len(rows[~torch.isin(rows, seen)].unique())
    rate = _equal_by_chance(x, len(seen) + len(rows)) if found else 0.0
    spread = 3 * math.sqrt(rate * (1 - rate) * len(rows))
    return 0 if found <= rate * len(rows) + spread else found


def _equal_by_chance(x: Tensor, others: int) -> float:
    """Return the share of rows (N, D) of a table that equal another if columns are independent.

    A row then equals one of m others with probability 1 − (1 − Π_c p_c)^m. Here p_c is the share of
    its value in column c among the other different rows. It is 0 if a column tells all rows apart.
    Dependent columns make more rows equal by chance.
    """
    if x.ndim != 2 or not x.is_floating_point() or len(different := x.cpu().unique(dim=0)) < 2:
        return 0.0
    share = torch.ones(len(different)).double()
    for column in different.T:
        _, place, count = column.unique(return_inverse=True, return_counts=True)
        share *= (count[place] - 1) / (len(different) - 1)
    rate = -torch.expm1(others * torch.log1p(-share.clamp_max(1 - 1e-9)))
    return float(rate.mean())


def _range(x: Tensor) -> tuple[Any, Any]:
    """Return the least and most value for JSON: None for tokens and for a column without any."""
    if x.dtype == torch.int32:
        return None, None
    if x.ndim != 2 or not x.is_floating_point():
        return x.min().item(), x.max().item()
    ends = x.nan_to_num(torch.inf).amin(0), x.nan_to_num(-torch.inf).amax(0)
    least, most = ([v if math.isfinite(v) else None for v in end.tolist()] for end in ends)
    return least, most


def _other(name: str, difference: str) -> SettingError:
    return SettingError("dataset", name, f"the data that the run was started with: {difference}")
