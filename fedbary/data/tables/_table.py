"""The regression set, and the checks that turn arrays into one."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch

from fedbary.data.cell_words import disguised
from fedbary.data.column import Column
from fedbary.data.deal import tenth_of_all
from fedbary.data.frame import TARGET, Frame
from fedbary.data.split import tenth
from fedbary.data.tables._coded import Coded
from fedbary.data.tables._coding import features_of, without
from fedbary.data.tables._layout import Layout, columns_of, indicated, require, require_plain
from fedbary.errors import CellError, SettingError


@dataclass(frozen=True, eq=False)
class Table(Coded):
    """A regression set in its own units; targets are finite float64, and there are no classes."""

    @property
    def features(self) -> tuple[str, ...]:
        """Name of each column of ``x``."""
        return self.layout.features

    def tested(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of the rows."""
        return tenth(len(self.y), rng)

    def validation(self, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw a tenth of the training rows."""
        return tenth_of_all(targets, rng)


def measured(held: Frame, layout: Layout | None = None, missing: str = "refuse") -> Table:
    """Return the regression set of a frame.

    Parameters
    ----------
    held : Frame
        With the target.
    layout : Layout
        The federation's layout, which codes a site's own data; rows with a level unknown to it are
        left out. The default is the frame's own layout; it drops constant columns with a warning.
    missing : str
        Treatment of missing values in that layout.

    Raises
    ------
    SettingError
        A cell is missing or not finite; the error names the row, counted from 1. Without a given
        layout also: the target or every feature is constant, or there is one row.
    """
    assert held.target is not None
    target, values = held.target, held.target.numbers
    require_plain(held.name, TARGET, target)
    if not np.isfinite(values).any() and not target.missing.all():
        assert target.texts is not None
        allowed = disguised(target.texts) or "a column of numbers; task=tables predicts classes"
        raise CellError(f"{held.name}: {TARGET}", target.cell(0), allowed)
    require(held.name, TARGET, target, ~np.isfinite(values), "a finite number")
    if np.spacing(np.abs(values).max()) > np.ptp(values) / 1000 > 0:
        allowed = "numbers that double precision tells apart: subtract a constant"
        raise CellError(f"{held.name}: {TARGET}", target.cell(0), allowed)
    chosen = layout or _own_layout(held, missing)
    x, unknown = features_of(held, chosen)
    known = without(held, chosen, unknown)
    features, targets = (torch.from_numpy(part[~unknown]) for part in (x, values))
    return Table(held.name, chosen, features, targets, known.splits, chosen.unused(held.columns))


def _own_layout(held: Frame, missing: str) -> Layout:
    assert held.target is not None
    if held.count < 2:
        features = f"{held.count} rows, {len(held.columns)} features"
        raise SettingError(held.name, features, "at least 2 and 1")
    columns = dict(columns_of(held, missing))
    constant = [name for name in columns if _is_constant(held.columns[name])]
    if np.ptp(held.target.numbers) == 0 or len(constant) == len(columns):
        what = "every feature" if len(constant) == len(columns) else "the target"
        allowed = "at least one feature and a target that vary"
        raise SettingError(held.name, f"{what} is constant", allowed)
    if constant:
        said = f"{held.name}: constant features are left out: {', '.join(constant)}"
        warnings.warn(said, stacklevel=2)
    varying = {name: levels for name, levels in columns.items() if name not in constant}
    return Layout(tuple(varying.items()), (), missing, indicated(held, varying, missing))


def _is_constant(column: Column) -> bool:
    held = column.texts if column.is_text and column.texts is not None else column.numbers
    return len(set(held[~column.missing].tolist())) == 1
