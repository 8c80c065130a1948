"""The server's question for medians, by counts alone: both the asking and the answering side.

A median lies within a standard deviation of the mean. Fifteen points cut this range into sixteen
parts. Sites count a column's values up to each point; the part that holds the median is the next
range. After four answers the median is known to 1/32768 of the standard deviation.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedbary.data.standardise import Sums
from fedbary.errors import RunError
from fedbary.tasks._sums import count
from fedbary.tasks.shared.values import Dialogue, Question

NAME = "below"

PARTS = 16

TIMES = 4


def ask(sums: Sums) -> Dialogue[Tensor]:
    """Return the median of each column (C,) of given sums, over all sites that answer.

    Raises
    ------
    RunError
        If none answers.
    """
    low, high = sums.mean - sums.var.sqrt(), sums.mean + sums.var.sqrt()
    inner = torch.arange(1, PARTS).double() / PARTS
    for _ in range(TIMES):
        points = low[:, None] + (high - low)[:, None] * inner
        asked = {"points": points.flatten().tolist()}
        answers = yield Question(NAME, functools.partial(read, columns=len(low)), asked)
        if not answers:
            raise RunError("no node answered with the counts of its columns")
        below, seen = (sum(part[1:], part[0]) for part in zip(*answers, strict=True))
        place = (below < seen[:, None] / 2).sum(1)
        edges = torch.cat([low[:, None], points, high[:, None]], 1)
        low, high = (edges.gather(1, (place + k)[:, None])[:, 0] for k in (0, 1))
    return (low + high) / 2


def answer(columns: Tensor, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Count a site's columns (n, C), whose missing values are NaN."""
    points = torch.tensor(asked["points"], dtype=torch.float64).reshape(columns.shape[1], -1)
    below = [(columns <= each).sum(0) for each in points.unbind(1)]
    return {
        "count": len(columns),
        "below": torch.stack(below, 1).flatten().tolist(),
        "seen": (~columns.isnan()).sum(0).tolist(),
    }


def read(metrics: Mapping[str, Any], most: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the counts (C, points) and (C,) that an answer holds; an error if it holds none."""
    rows = count(metrics, most)
    seen = torch.tensor(metrics["seen"], dtype=torch.float64)
    below = torch.tensor(metrics["below"], dtype=torch.float64).reshape(columns, PARTS - 1)
    if len(seen) != columns:
        raise ValueError(f"it counts {len(seen)} columns")
    every = torch.cat([torch.zeros(columns, 1).double(), below, seen[:, None]], 1)
    if not ((every.diff() >= 0).all() and (seen <= rows).all()):
        raise ValueError(f"no {rows} rows have these counts")
    return below, seen
