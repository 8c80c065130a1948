"""The arithmetic of robust rules, joint rules and the bound, which need all clients at once.

A stack is the clients' means and log-variances (None if deterministic) of one tensor or of one
piece of it, each [clients, weights].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedbary.aggregation.bound import bound_precisions
from fedbary.aggregation.joint import AnyRule, JointRule
from fedbary.aggregation.robust import CoordinateRule
from fedbary.aggregation.rule import Rule
from fedbary.aggregation.rules import WB
from fedbary.aggregation.sums import PIECE, RunningSums

Stack = tuple[Tensor, Tensor | None]


def stacked(
    clients: Sequence[tuple[Tensor, Tensor | None]],
    max_precision_ratio: float | None,
    dtype: torch.dtype,
    bounded: int,
) -> Stack:
    """Return means and log-variances as a stack in a dtype, the first ones' precisions bounded."""
    mean = torch.stack([mean.to(dtype) for mean, _ in clients])
    log_vars = [log_var.to(dtype) for _, log_var in clients if log_var is not None]
    if not log_vars:
        return mean, None
    log_var = torch.stack(log_vars)
    if max_precision_ratio is not None:
        log_var[:bounded] = bound_precisions(log_var[:bounded], max_precision_ratio)
    return mean, log_var


def aggregate_stack(
    rule: AnyRule, stack: Stack, weights: Sequence[float]
) -> tuple[Tensor, Tensor | None]:
    """Return the aggregate's mean and log-variance, [weights]; None if deterministic.

    Parameters
    ----------
    rule
        The rule; a selection rule only averages here.
    stack
        The clients' values.
    weights
        Normalised, one per client; for a selection rule its own weights.
    """
    mean, log_var = stack
    if isinstance(rule, CoordinateRule):
        hostile = rule.num_hostile(len(mean))
        across = rule.across(mean, hostile)
        return across, None if log_var is None else rule.across(log_var, hostile)
    if isinstance(rule, JointRule) and log_var is not None:
        shares = torch.tensor(weights, dtype=torch.float64, device=mean.device)
        return rule.across(mean.double(), log_var.double(), shares)
    sums = RunningSums(rule if isinstance(rule, Rule) else WB, mean.dtype)
    for k, weight in enumerate(weights):
        sums.add(mean[k], None if log_var is None else log_var[k], weight)
    return sums.finish()


def mixed(stack: Stack, matrices: Tensor) -> Stack:
    """Return the clients' points (m, √v) after mixing; the stack's last is the centre.

    Parameters
    ----------
    stack
        The clients' values, and the centre's.
    matrices
        For m and for √v, (2, clients, clients), see `Mixing.matrices`.
    """
    mean, log_var = stack
    rest = 1 - matrices.sum(2, keepdim=True)
    of_means, of_stds = torch.cat([matrices, rest], dim=2).to(mean).clamp_min(0)
    if log_var is None:
        return of_means @ mean, None
    return of_means @ mean, 2 * (of_stds @ (log_var / 2).exp()).log()


def update_products(stack: Stack) -> Tensor:
    """Return the inner products of the clients' updates in m and in √v, [2, clients, clients].

    Updates are differences from the stack's last, the centre. In float64 a third, distant client
    does not make two clients' product less exact.
    """
    mean, log_var = stack
    updates = mean[:-1].double() - mean[-1].double()
    of_means = updates @ updates.T
    if log_var is None:
        return torch.stack([of_means, torch.zeros_like(of_means)]).cpu()
    std = (log_var.double() / 2).exp()
    updates = std[:-1] - std[-1]
    return torch.stack([of_means, updates @ updates.T]).cpu()


def squared_distances(stack: Stack) -> Tensor:
    """Return the squared Wasserstein-2 distances between clients, [clients, clients].

    Differences are taken in float64 before they are squared. So distances stay exact for clients
    that lie close together and far from 0.
    """
    mean, log_var = stack
    points = mean.double()
    if log_var is not None:
        points = torch.cat([points, (log_var.double() / 2).exp()], dim=1)
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.square().cpu()


def stack_size(clients: int) -> int:
    """Return how many elements to stack at a time, so that memory does not grow with clients."""
    return max(PIECE // 16, min(PIECE, 4 * PIECE // clients))
