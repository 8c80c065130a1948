"""A bound on precisions, relative to the clients' median."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedbary.aggregation.robust import median
from fedbary.errors import SettingError


def check_ratio(ratio: float | None, setting: str = "max_precision_ratio") -> None:
    """Raise a SettingError unless the ratio is None, or finite and 1 or more."""
    if ratio is not None and not 1 <= ratio < math.inf:
        raise SettingError(setting, ratio, "1 or more, or None")


def bound_precisions(log_var: Tensor, max_precision_ratio: float) -> Tensor:
    """Return log-variances, [clients, weights], of precisions within a ratio r of the median.

    For each weight, 1/v_k becomes min(1/v_k, r · median_j 1/v_j); every client counts once in the
    median. A rule that weighs by precision gives a client the influence w/v: one that sends tiny
    variances decides the aggregate. With the bound it has at most r times the influence of a client
    with the median precision, if less than half of the clients are hostile.

    The bound does nothing else. It does not change means. Let a fraction h of the clients be
    hostile, with equal weights, and the others have the median precision. Then the hostile ones
    still have up to r h / (r h + 1 − h) of the influence. It does not change large variances, which
    WB, EAA and FKLB pass on, nor the weights that clients claim.
    """
    least = median(log_var) - math.log(max_precision_ratio)
    return torch.maximum(log_var, least)
