"""A score test of proportional hazards within sites, by sums that tell no time.

A term whose hazard ratio changes with time t has x·θ·log t beside x·β. At θ = 0 a site has, of its
partial likelihood with the mean x̄(t) and the covariance V(t) of x over the rows at risk, weighted
by hazard, and with d(t) events at t,

    u_m = Σ_events (log t)^m (x_i − x̄(t_i)),    A_m = Σ_t d(t) (log t)^m V(t).

Summed over sites, with β unknown, the score of θ and its covariance are

    s = u_1 − A_1 A_0⁻¹ u_0,    W = A_2 − A_1 A_0⁻¹ A_1,    χ² = sᵀ W⁻¹ s.

A term's own test takes its part of s and W. Another unit of time changes nothing.

References: Cox, Regression models and life-tables, 1972; Grambsch and Therneau, Proportional
hazards tests and diagnostics based on weighted residuals, 1994.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fedbary.tasks._values import Dialogue, Question

NAME = "proportional"
"""The question's name."""

POWERS = 3
ROUNDING = 1e-8
LARGEST_LOG = 100.0
"""Largest size of log t, in any unit: times from 1e-43 to 1e43."""


def answer(x: Tensor, predictor: Tensor, time: Tensor, event: Tensor) -> dict[str, Any]:
    """Answer with u_0, u_1 and the triangles of A_0, A_1, A_2.

    `x` (n, P) are the columns, `predictor` x·β, `event` 1 for an event among 0s.
    """
    order = time.argsort(descending=True)
    x, event, log_time = x[order].double(), event[order].double(), time[order].double().log()
    weight = (predictor[order] - predictor.max()).exp()
    _, place, sizes = time[order].unique_consecutive(return_inverse=True, return_counts=True)
    ends = sizes.cumsum(0) - 1
    total, mean = weight.cumsum(0)[ends], (weight[:, None] * x).cumsum(0)[ends]
    mean = mean / total[:, None]
    events, at = torch.zeros_like(total).index_add(0, place, event), log_time[ends]
    powers = torch.stack([at**m for m in range(POWERS)])
    scores = [(event * powers[m][place]) @ (x - mean[place]) for m in (0, 1)]
    row, column = torch.triu_indices(x.shape[1], x.shape[1])
    triangles = []
    for counted in events * powers:
        since = (counted / total).flip(0).cumsum(0).flip(0)  # times until a row's own
        held = (x * (weight * since[place])[:, None]).T @ x - (mean * counted[:, None]).T @ mean
        triangles.append(held[row, column])
    return {"proportional": torch.cat([*scores, *triangles]).tolist()}


def ask(tensors: Mapping[str, Tensor], width: int, rows: float) -> Dialogue[list[Tensor]]:
    """Ask for the sums of each site, for `width` columns.

    Over all sites' `rows` N the columns have a variance of 1. So two rows of a site differ by 2 √N
    at most in a column, and each of its events adds N at most to a variance.
    """
    logs = LARGEST_LOG ** torch.arange(POWERS).double()
    scores = 2 * math.sqrt(rows) * logs[:2].repeat_interleave(width)
    most_of_event = torch.cat([scores, rows * logs.repeat_interleave(width * (width + 1) // 2)])
    length = len(most_of_event)

    def read(metrics: Mapping[str, Any], most: int) -> Tensor:
        told = torch.tensor(metrics["proportional"], dtype=torch.float64)
        if told.shape != (length,):
            raise ValueError(f"{[*told.shape]} numbers, not {length}")
        if not (told.abs() <= 1.01 * most * most_of_event).all():
            raise ValueError(f"no {most} rows of {rows:.0f} have numbers of this size")
        _, (a0, a1, a2) = unpacked(told, width)
        whole = torch.cat([torch.cat([a0, a1], 1), torch.cat([a1, a2], 1)])
        values = torch.linalg.eigvalsh(whole)
        if values[0] < -ROUNDING * values[-1].clamp_min(1e-30):
            raise ValueError(f"no {most} rows have these covariances")
        return told

    return (yield Question(NAME, read, {}, tensors))


def unpacked(told: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return u, (2, P), and A, (3, P, P)."""
    scores, triangles = told.split([2 * width, len(told) - 2 * width])
    row, column = torch.triu_indices(width, width)
    found = torch.zeros(POWERS, width, width, dtype=torch.float64)
    found[:, row, column] = found[:, column, row] = triangles.view(POWERS, -1)
    return scores.view(2, width), found


def score_tests(
    told: Tensor, back: Tensor, groups: Mapping[str, list[int]]
) -> Iterator[tuple[str, float, int]]:
    """Yield name, χ² and degrees of freedom of all columns together, "", and of each group.

    `back` (K, P) makes K columns of those that were told of, which span no more.
    """
    scores, parts = unpacked(told, back.shape[1])
    u0, u1 = scores @ back.T
    a0, a1, a2 = back @ parts @ back.T
    solved = torch.linalg.pinv(a0, hermitian=True, rtol=ROUNDING)
    score, var = u1 - a1 @ solved @ u0, a2 - a1 @ solved @ a1
    for name, group in {"": list(range(len(back))), **groups}.items():
        inverse = torch.linalg.pinv(var[group][:, group], hermitian=True, rtol=ROUNDING)
        degrees = int(torch.linalg.matrix_rank(inverse, hermitian=True))
        yield name, float(score[group] @ inverse @ score[group]), degrees
