"""Coefficients in the columns' own units, from the weights of a last layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbary.data.layout import Layout
from fedbary.errors import SettingError

INTERCEPT = "intercept"

NUMBER = "per 1"
"""The unit of a number."""


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Coefficients β = J w + c of a last layer's weights w; their covariance is J V Jᵀ.

    w is the layer's weight with the bias as its last column, (outputs, features + 1), row by row.
    That is the order of a full covariance V, too. J is the Kronecker product of `outputs` and
    `columns`, whose rows are independent: the terms of the first outcome, then of the next.

    Parameters
    ----------
    terms : tuple of str
        Name of each of t terms.
    units : tuple of str
        The comparison of each: ``per 1`` of a number, or the reference of a level.
    outcomes : tuple of str
        Name of each of o outcomes: a class against another, or the target.
    columns, outputs : Tensor
        Each term as a combination of features and bias, (t, features + 1), and each outcome as one
        of outputs, (o, outputs), float64.
    link : str
        Meaning of exp(β): a ratio of odds, rates or hazards. identity: β is a difference.
    offset : Tensor
        c, (o, t) float64.
    rows, events : Tensor
        Rows that have the level, and those of them with the outcome, (o, t) float64; NaN where the
        run does not know them.
    degrees : float
        Degrees of freedom of the intervals' t; infinite for a normal.
    notes : tuple of str
        Lines that stand above the table.
    of_sites : tuple of str
        Terms that are the same in all rows of a site, whose intercept is drawn.
    """

    terms: tuple[str, ...]
    units: tuple[str, ...]
    outcomes: tuple[str, ...]
    columns: Tensor
    outputs: Tensor
    link: Literal["odds", "rate", "hazard", "identity"]
    offset: Tensor
    rows: Tensor
    events: Tensor
    degrees: float = math.inf
    notes: tuple[str, ...] = ()
    of_sites: tuple[str, ...] = ()

    @property
    def matrix(self) -> Tensor:
        """J, (o t, weights of the layer) float64."""
        return torch.kron(self.outputs, self.columns)


def are_levels(units: Sequence[str]) -> Tensor:
    """Return which terms are of levels, (terms,) bool."""
    return torch.tensor([unit.startswith("against") for unit in units])


def columns_of(
    layout: Layout, mean: Tensor, std: Tensor, references: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...], Tensor]:
    """Return terms, units and `Contrasts.columns` of standardised features z = (x − m)/s.

    The coefficient of a number is w/s. That of a level is its own less the reference's. The last
    term is the intercept b − Σ w m/s, of a row of zeros and reference levels. A column or a level
    without spread has no term.

    Parameters
    ----------
    layout : Layout
        The columns and their levels.
    mean, std : Tensor
        m and s of the features, (features,) float64.
    references : mapping of str to str
        The reference of columns with levels; by default the first level that has spread.

    Raises
    ------
    SettingError
        If no row has a reference.
    """
    names, slopes = layout.features, torch.diag(1 / std)
    groups = [levels for _, levels in layout.columns] + [()] * len(layout.indicated)
    columns = [name for name, _ in layout.columns]
    terms, rows, base, place = dict[str, str](), list[Tensor](), -mean / std, 0
    for i, levels in enumerate(groups):
        places = range(place, place := place + max(1, len(levels)))
        held = [p for p in places if std[p].isfinite()]
        if levels and held:
            known = [levels[p - places.start] for p in held]
            named = (references or {}).get(columns[i], known[0])
            if named not in known:
                where = f"reference of {columns[i]}"
                raise SettingError(where, named, f"a level with rows: {', '.join(known)}")
            reference = held.pop(known.index(named))
            base = base + slopes[reference]
        for p in held:
            terms[names[p]] = f"against {named}" if levels else NUMBER
            rows.append(slopes[p] - slopes[reference] if levels else slopes[p])
    one = torch.zeros(len(rows) + 1, 1, dtype=torch.float64)
    one[-1] = 1
    matrix = torch.cat([torch.stack([*rows, base]), one], 1)
    return (*terms, INTERCEPT), (*terms.values(), ""), matrix


def rows_of(
    terms: Sequence[str], units: Sequence[str], layout: Layout, mean: Tensor, count: Tensor
) -> Tensor:
    """Return how many rows have the level of each term, (terms,); of a number, all have a value."""
    places = [layout.features.index(term) if term != INTERCEPT else 0 for term in terms]
    return (torch.where(are_levels(units), mean[places].double(), 1.0) * count).round()


def against(classes: int, reference: int = 0) -> Tensor:
    """Return each other class less a reference, as `Contrasts.outputs` of a softmax."""
    turn = torch.eye(classes, dtype=torch.float64)
    turn[:, reference] -= 1
    return turn[torch.arange(classes) != reference]
