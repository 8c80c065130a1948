"""A joint rule: a function of all clients' Gaussians of a weight, and of their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedbary.aggregation.robust import RobustRule
from fedbary.aggregation.rule import Rule


@dataclass(frozen=True)
class JointRule:
    """A rule that is not a sum over clients: it needs all their Gaussians of a weight at once.

    Deterministic tensors are averaged by weight.

    Parameters
    ----------
    name : str
        The name it goes by in `RULES`.
    across : callable
        Takes means and log-variances [clients, weights], and the clients' weights [clients], which
        sum to 1. Returns the aggregate's mean and log-variance [weights]. All are in float64. It
        must not change its arguments, and must return equal Gaussians unchanged.
    """

    name: str
    across: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

    @property
    def is_mean(self) -> bool:
        """Return whether equal posteriors aggregate to themselves."""
        return True


AnyRule = Rule | RobustRule | JointRule
"""Every kind of rule."""
