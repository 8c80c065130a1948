"""Kinds of aggregation rules: means in other coordinates, joint rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedbary.aggregation.robust import RobustRule
from fedbary.gaussian import Posterior

AddInPlace = Callable[[Sequence[np.ndarray], np.ndarray, np.ndarray, float, np.ndarray], None]
"""Adds w F(mean, log_var) to the sums: (sums, mean, log_var, w, spare).

All are arrays of one shape and dtype. The last is working memory: its values are arbitrary and may
change.
"""

Divergence = Callable[[Posterior, Posterior], float]
"""D(q, p_k) of an aggregate q and a client's posterior p_k; it is 0 where they are equal."""


@dataclass(frozen=True)
class Rule:
    """A weighted sum of Gaussians N(m_k, v_k) in the coordinates of a chart F.

    The aggregate is F⁻¹(Σ w_k^p F(m_k, log v_k)), with weights w_k that sum to 1. A `relative` rule
    divides the sum by the largest weight before it applies F⁻¹. If every power p is 1 and the rule
    is not relative, it is a quasi-arithmetic mean (BA-BFL, eqs. 9-10). F and F⁻¹ work element by
    element on tensors of one shape and floating dtype. They must not change their arguments.

    Parameters
    ----------
    name : str
        The name it goes by in `RULES`.
    forward : callable
        F: (mean, log_var) to a tuple of coordinates.
    inverse : callable
        F⁻¹: the summed coordinates to (mean, log_var).
    powers : tuple of int
        The power of the weight for each coordinate.
    centred : bool
        True: sums are of means less the first client's mean, in float64. It is for a chart whose
        inverse subtracts sums of squared means. Adding a number to all means must add it to the
        aggregate's.
    relative : bool
        True: the sums are divided by the largest weight, so that its client counts once.
    add : callable, optional
        Does on a CPU what `forward` and a weighted sum do, without temporary arrays; for a rule
        that is not `centred` and whose powers are equal.
    divergence : callable, optional
        The D(q, p_k) whose sum Σ w_k D(q, p_k) the aggregate makes least; none for a rule that is
        no barycentre.
    """

    name: str
    forward: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    inverse: Callable[..., tuple[Tensor, Tensor]]
    powers: tuple[int, ...] = (1, 1)
    centred: bool = False
    relative: bool = False
    add: AddInPlace | None = None
    divergence: Divergence | None = None

    @property
    def is_mean(self) -> bool:
        """Return whether it is a weighted mean in its chart, with weights that sum to 1."""
        return all(power == 1 for power in self.powers) and not self.relative

    def found(self, sums: Sequence[Tensor], largest: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and log-variance at the sums of coordinates, given the largest weight."""
        return self.inverse(*([total / largest for total in sums] if self.relative else sums))


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
