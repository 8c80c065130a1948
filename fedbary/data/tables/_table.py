"""What a regression set is, and the checks that turn arrays into one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbary.data.deal import tenth_of_all
from fedbary.data.tables._split import Split, checked_split, prescribed, tenth
from fedbary.errors import CellError, SettingError
from fedbary.seeds import derive_seed


@dataclass(frozen=True, eq=False)
class Table:
    """A regression set in its own units.

    Attributes
    ----------
    name : str
        Where it is from.
    features : tuple of str
        Name of each column of ``x``.
    x, y : Tensor
        Features (N, D) and target (N,), finite float64.
    splits : tuple of Split
        The splits that the source prescribes; empty if it prescribes none.
    """

    name: str
    features: tuple[str, ...]
    x: Tensor
    y: Tensor
    splits: tuple[Split, ...] = ()

    @property
    def examples(self) -> tuple[Tensor, Tensor]:
        """All features and targets."""
        return self.x, self.y

    def parted(self, split: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the numbers of a split's training rows, and its test features and targets."""
        parts = self.split(split)
        return parts.train, (self.x[parts.test], self.y[parts.test])

    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of the training rows."""
        return tenth_of_all(targets, rng)

    def split(self, number: int) -> Split:
        """Return a split by its number, from 0: a prescribed one, or else a random tenth to test.

        Raises
        ------
        SettingError
            If there is no split of that number.
        """
        if split := prescribed(self.splits, number):
            return split
        rng = np.random.default_rng(derive_seed(number, "split"))
        return Split.where(tenth(len(self.y), rng))


def table(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    features: Sequence[str],
    splits: Sequence[tuple[np.ndarray, np.ndarray]] = (),
    cell: Callable[[int, int], object] | None = None,
) -> Table:
    """Return the set that arrays describe; features that never vary are dropped with a warning.

    Parameters
    ----------
    name : str
        Where the arrays are from, named in errors and warnings.
    x, y : ndarray
        Numbers, (N, D) and (N,).
    features : sequence of str
        D names.
    splits : sequence of (ndarray, ndarray)
        Row numbers, from 0, to train on and to test on.
    cell : callable
        What stood at (row, column), for the message about a value that is not finite; column D
        is the target. By default the value itself.

    Raises
    ------
    SettingError
        The shapes do not fit, a value is not finite (names the row, counted from 1), the target
        or every feature is constant, or a split is empty, overlaps, or names rows that are not.
    """
    if (
        x.ndim != 2
        or y.shape != x.shape[:1]
        or x.dtype.kind not in "iufb"
        or y.dtype.kind not in "iufb"
    ):
        held = (
            f"{'×'.join(map(str, x.shape))} {x.dtype} and {'×'.join(map(str, y.shape))} {y.dtype}"
        )
        raise SettingError(name, held, "numbers: features N×D, a target of length N")
    if len(y) < 2 or not len(features):
        raise SettingError(name, f"{len(y)} rows, {len(features)} features", "at least 2 and 1")
    x, y = x.astype(np.float64), y.astype(np.float64)
    whole = np.column_stack([x, y])
    for row, column in np.argwhere(~np.isfinite(whole))[:1].tolist():
        of = f"feature {features[column]!r}" if column < len(features) else "target"
        stood = float(whole[row, column]) if cell is None else cell(row, column)
        raise CellError(f"{name}: row {row + 1}, {of}", stood, "a finite number")
    varies = np.ptp(whole, axis=0) > 0
    if not varies[-1] or not varies[:-1].any():
        held = "every feature" if varies[-1] else "the target"
        raise SettingError(
            name, f"{held} is constant", "at least one feature and a target that vary"
        )
    if not varies.all():
        dropped = ", ".join(str(f) for f, kept in zip(features, varies, strict=False) if not kept)
        warnings.warn(f"{name}: constant features are left out: {dropped}", stacklevel=2)
    kept = varies[:-1]
    return Table(
        name,
        tuple(str(feature) for feature, keep in zip(features, kept, strict=True) if keep),
        torch.from_numpy(np.ascontiguousarray(x[:, kept])),
        torch.from_numpy(y),
        tuple(checked_split(name, number, len(y), *rows) for number, rows in enumerate(splits)),
    )
