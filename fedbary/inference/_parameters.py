"""What a local method can be told of the posterior that it infers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedbary.parts.parameters import Checked, NotNegative, Positive


@dataclass(frozen=True)
class PosteriorParameters(Checked):
    """The prior, its weight, and how fast log-variances move.

    Parameters
    ----------
    prior
        normal: N(0, prior_std²) in every round; global: the last global posterior, in round 1
        normal.
    prior_std
        Of N(0, prior_std²).
    kl_weight
        Weight of KL(q‖prior)/n_k beside the mean cross-entropy; share: n_k/n, the client's share of
        all examples, with which clients of any size count the prior once in all.
    log_var_lr
        Log-variances: Adam's rate; for ivon and natural_gradient the part of its way that a
        precision moves in a step; for clamped_sgd SGD's rate; 0 freezes them.
    """

    prior: Literal["normal", "global"] = "normal"
    prior_std: Positive = 1.0
    kl_weight: Literal["share"] | NotNegative = 0.001
    log_var_lr: NotNegative = 0.003


@dataclass(frozen=True)
class NaturalParameters(PosteriorParameters):
    """Those of natural gradients, which a `kl_weight` of 0 would make infinite."""

    kl_weight: Literal["share"] | Positive = 0.001
