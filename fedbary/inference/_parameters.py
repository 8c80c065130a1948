"""Parameters of local methods: of their steps, and of the posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedbary.parts.parameters import (
    BelowOne,
    Checked,
    Count,
    LogVar,
    NotNegative,
    Positive,
)


@dataclass(frozen=True)
class StepParameters(Checked):
    """The batches, and SGD of means and point weights.

    A method that does not use the run's local inference trains by these.

    Parameters
    ----------
    local_epochs
        Passes of a client over its data in a round.
    batch_size
        Examples a step.
    lr
        Step size of SGD.
    lr_schedule
        constant; cosine: the step size falls from lr in round 1 towards 0 after the last round. The
        default is constant with methods that sample along their steps, such as SGLD.
    momentum
        Momentum of SGD.
    weight_decay
        Weight decay of means and deterministic weights, in addition to the prior.
    max_grad_norm
        Gradients of the mean cross-entropy are clipped to this norm; none: they are not.
    """

    local_epochs: Count = 5
    batch_size: Count = 16
    lr: Positive = 0.02
    lr_schedule: Literal["constant", "cosine"] = "cosine"
    momentum: BelowOne = 0.9
    weight_decay: NotNegative = 0.00001
    max_grad_norm: Positive | None = 5.0

    def lr_in(self, server_round: int, rounds: int) -> float:
        """Return the rate of the means in a round; cosine: lr · ½ (1 + cos(π (t − 1)/rounds))."""
        if self.lr_schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1 + math.cos(math.pi * (server_round - 1) / rounds))


@dataclass(frozen=True)
class PriorParameters(StepParameters):
    """The steps, and the prior.

    Parameters
    ----------
    prior
        normal: N(0, prior_std²) in every round. global: the last global posterior; round 1 takes
        normal. earlier: the posterior of the run that start_from names, in every round.
        earlier_only: the same, and the network begins as a new one.
    prior_std
        Standard deviation of the prior N(0, prior_std²).
    """

    prior: Literal["normal", "global", "earlier", "earlier_only"] = "normal"
    prior_std: Positive = 1.0


@dataclass(frozen=True)
class PosteriorParameters(PriorParameters):
    """The steps, the prior and its weight, and how log-variances begin and move.

    Parameters
    ----------
    kl_weight
        Weight of KL(q‖prior)/n_k beside the mean cross-entropy. share: n_k/n, the client's share of
        all examples. All clients together then count the prior once. For linear models RKLB then
        has the exact posterior after one round if features are orthogonal at each client, and its
        variances in any case.
    init_log_var
        Initial log-variance of the variational weights.
    log_var_lr
        Step size of log-variances: Adam's, or SGD's with clamped_sgd. With ivon and
        natural_gradient it is the part of its way that a precision moves in a step. 0 freezes them.
    """

    kl_weight: Literal["share"] | NotNegative = 0.001
    init_log_var: LogVar = -7.0
    log_var_lr: NotNegative = 0.003


@dataclass(frozen=True)
class NaturalParameters(PosteriorParameters):
    """Those of natural gradients, which a `kl_weight` of 0 would make infinite."""

    kl_weight: Literal["share"] | Positive = 0.001
