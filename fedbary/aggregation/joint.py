"""A joint rule: a function of all clients' Gaussians of a weight, and of their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedbary.aggregation.robust import RobustRule
from fedbary.aggregation.rule import Rule


@dataclass(frozen=True)
class JointRule:
    """A rule that is no sum over clients: it sees their Gaussians of each weight side by side.

    Deterministic tensors are averaged by weight.

    Parameters
    ----------
    name : str
        The name it goes by in `RULES`.
    across : callable
        From means and log-variances [clients, weights] and the clients' weights [clients], which
        sum to 1, to the aggregate's mean and log-variance [weights]. All are in float64, none may
        be changed, and equal Gaussians must give themselves.
    """

    name: str
    across: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

    @property
    def is_mean(self) -> bool:
        """Return whether equal posteriors aggregate to themselves."""
        return True


AnyRule = Rule | RobustRule | JointRule
"""Every kind of rule."""
