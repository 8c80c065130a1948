"""What sites tell of a survival model after the last round: sums over their rows, at the model.

**pairs** are those of C within each site, see `fedbary.scores.survival`. **cells** are rows by
predicted risk: rows, predicted risks, events and expected events. **curves** are rows at risk,
events and time at risk of each interval, of all rows and of each level.

A site joins cells of risk to their neighbours until each has as many events, and as many other
rows, as its limit of a cell says. It counts a group's rows in an interval only while so many are at
risk when it begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fedbary.scores.survival import pair_sums, pairs
from fedbary.tasks._values import Dialogue, Question

PAIRS, CELLS, CURVES = "pairs", "risk-groups", "curves"
"""The questions' names."""

GROUPS = 10


def edges(weights: Tensor) -> Tensor:
    """Return the tenths of x·β, (9,), of columns that are uncorrelated and of variance 1."""
    return weights.norm() * torch.from_numpy(ndtri(np.arange(1, GROUPS) / GROUPS))


def answer_pairs(predictor: Tensor, time: Tensor, event: Tensor) -> dict[str, Any]:
    """Answer with the sums of pairs; rows of float32 that are equal have equal predictors."""
    held = pairs(predictor.float().numpy(), time.numpy(), event.numpy())
    return {PAIRS: pair_sums(*held).tolist()}


def answer_cells(
    predictor: Tensor, risk: Tensor, expected: Tensor, event: Tensor, at: Tensor, least: int
) -> dict[str, Any]:
    """Answer with the sums of each cell of x·β, (4, 10), row by row.

    Parameters
    ----------
    predictor, risk, expected, event
        x·β, the predicted risk, the expected events while observed, and events until the time,
        (n,) each.
    at
        Edges of the cells, see `edges`.
    least
        Rows and events below which a cell is joined to the next.
    """
    cell = torch.bucketize(predictor, at)
    told = torch.stack([torch.ones_like(risk), risk, event, expected]).double()
    sums = torch.zeros(4, GROUPS, dtype=torch.float64).index_add(1, cell, told)
    return {CELLS: joined(sums, least).flatten().tolist()}


def joined(cells: Tensor, least: int) -> Tensor:
    """Return cells (4, G) each of which has `least` events and as many other rows, or no row.

    A cell that is short joins the next one, and the last joins the one before. Where all rows have
    an event, or none has, a cell needs `least` rows. Nothing is told where all together are short.
    """
    whole, found, held = cells.sum(1), torch.zeros_like(cells), torch.zeros_like(cells[:, 0])
    alike, last = whole[2] in (0, whole[0]), -1
    for place in range(cells.shape[1]):
        held = held + cells[:, place]
        if (held[0] if alike else min(held[2], held[0] - held[2])) >= least:
            found[:, place], held, last = held, torch.zeros_like(held), place
    if last >= 0:
        found[:, last] += held
    return found


def answer_curves(inside: Tensor, events: Tensor, groups: Tensor, least: int) -> dict[str, Any]:
    """Answer with rows at risk, events and time at risk, (G, 3, J), row by row.

    Parameters
    ----------
    inside, events
        Time of each row within each interval, and its events there, (n, J).
    groups
        1 for the rows of a group among 0s, (n, G).
    least
        Rows at risk at its beginning, below which an interval tells nothing of a group.
    """
    there = (inside > 0).double()
    sums = torch.stack([groups.double().T @ part for part in (there, events, inside)], 1)
    return {CURVES: (sums * (sums[:, :1] >= least)).flatten().tolist()}


def ask_pairs(tensors: Mapping[str, Tensor]) -> Dialogue[list[Tensor]]:
    """Ask for the sums of pairs of each site, (5,)."""

    def read(metrics: Mapping[str, Any], most: int) -> Tensor:
        told = _told(metrics[PAIRS], (5,), most**3)
        right, every, aa, ab, bb = told.tolist()
        sound = right <= every <= most * (most - 1) / 2 and aa <= ab <= bb <= 2 * every * most
        if not (sound and 4 * every**2 <= most * bb * (1 + 1e-9)):
            raise ValueError(f"no {most} rows have these pairs")
        return told

    return (yield Question(PAIRS, read, {}, tensors))


def ask_cells(tensors: Mapping[str, Tensor], at: float) -> Dialogue[list[Tensor]]:
    """Ask for the cells of predicted risk until a time of each site, (4, 10)."""

    def read(metrics: Mapping[str, Any], most: int) -> Tensor:
        rows, risk, events, expected = told = _told(metrics[CELLS], (4, GROUPS), 1e15)
        sound = (events <= rows) & (risk <= rows * (1 + 1e-9)) & ((expected == 0) | (rows > 0))
        if not (sound.all() and _are_counts(told[[0, 2]]) and rows.sum() <= most):
            raise ValueError(f"no {most} rows have these events and risks")
        return told

    return (yield Question(CELLS, read, {"at": at}, tensors))


def ask_curves(cuts: Tensor, groups: int) -> Dialogue[list[Tensor]]:
    """Ask for the curves of all rows and of each group, of each site, (1 + G, 3, J)."""
    shape = (1 + groups, 3, len(cuts) + 1)

    def read(metrics: Mapping[str, Any], most: int) -> Tensor:
        told = _told(metrics[CURVES], shape, 1e15)
        rows, events, time = told.unbind(1)
        lengths = torch.cat([cuts.diff(prepend=cuts.new_zeros(1)), cuts.new_tensor([torch.inf])])
        sound = (events <= rows) & ((time <= rows * lengths * (1 + 1e-9)) | (time == 0))
        if not (sound.all() and _are_counts(told[:, :2]) and (rows <= most).all()):
            raise ValueError(f"no {most} rows have these curves")
        return told

    return (yield Question(CURVES, read, {"cuts": cuts.tolist()}))


def _told(numbers: Sequence[float], shape: tuple[int, ...], most: float) -> Tensor:
    """Return the numbers of an answer, each from 0 to a bound."""
    told = torch.tensor(numbers, dtype=torch.float64).reshape(shape)
    if not ((told >= 0) & (told <= most)).all():
        raise ValueError(f"numbers beyond 0 to {most:g}")
    return told


def _are_counts(numbers: Tensor) -> bool:
    return bool((numbers == numbers.round()).all())
