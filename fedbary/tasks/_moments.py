"""The server's question for second moments of standardised columns: asking and answering.

A site sends the upper triangle of Σ z zᵀ over its rows, z = (x − mean)/std, and their number. The
sum over the sites is that of all rows, however they are split.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedbary.data.standardise import Standardiser
from fedbary.errors import RunError
from fedbary.tasks._sums import LARGEST_SUM, count
from fedbary.tasks.shared.values import Dialogue, Question

NAME = "moments"

ROUNDING = 1e-8
"""Tolerance of eigenvalues below 0, as a fraction of the largest."""


def ask(scale: Standardiser) -> Dialogue[Tensor]:
    """Ask for the triangles; return the mean of z zᵀ over all rows, (D, D) float64.

    Raises
    ------
    RunError
        If no site answers.
    """
    asked = {"mean": scale.mean.tolist(), "std": scale.std.tolist()}
    answers = yield Question(NAME, functools.partial(read, columns=len(scale.mean)), asked)
    if not answers:
        raise RunError("no node answered with the second moments of its features")
    rows, moments = (functools.reduce(operator.add, part) for part in zip(*answers, strict=True))
    found: Tensor = moments / rows
    return found


def answer(x: Tensor, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Answer with the triangle of a site's features (n, D)."""
    mean, std = (torch.tensor(asked[key], dtype=torch.float64) for key in ("mean", "std"))
    z = (x.cpu().double() - mean) / std
    moments = z.T @ z
    row, column = torch.triu_indices(*moments.shape)
    return {"count": len(x), "moments": moments[row, column].tolist()}


def read(metrics: Mapping[str, Any], most: int, columns: int) -> tuple[int, Tensor]:
    """Return the rows and Σ z zᵀ (D, D) that an answer holds, of at most so many rows.

    Raises
    ------
    ValueError
        If no rows have these second moments; any error if something else is wrong with the answer.
    """
    rows = count(metrics, most)
    triangle = torch.tensor(metrics["moments"], dtype=torch.float64)
    row, column = torch.triu_indices(columns, columns)
    if triangle.shape != row.shape:
        raise ValueError(f"{len(triangle)} second moments of {columns} columns")
    moments = torch.zeros(columns, columns, dtype=torch.float64)
    moments[row, column] = moments[column, row] = triangle
    if not triangle.abs().max() <= LARGEST_SUM:
        raise ValueError("second moments that are not finite")
    values = torch.linalg.eigvalsh(moments)
    if values[0] < -ROUNDING * values[-1]:
        raise ValueError(f"no {rows} rows have these second moments")
    return rows, moments
