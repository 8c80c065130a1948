"""Median of each coordinate: of the means, and of the log-variances.

Yin et al. (2018), Definition 1. The median of the log-variances is that of the variances, the
standard deviations or the precisions; of an even number of clients it is the middle of the two
middle ones, for variances thus their geometric mean. While less than half of the clients are
hostile, every coordinate lies within the range of the honest ones; no number of hostile clients
has to be assumed.
"""

from torch import Tensor

from fedbary.aggregation.robust import CoordinateRule
from fedbary.aggregation.trimmed_mean import trimmed_mean


def median(stack: Tensor) -> Tensor:
    """Return the median over the clients, [clients, weights] → [weights]."""
    return trimmed_mean(stack, (len(stack) - 1) // 2)


RULE = CoordinateRule("Median", lambda stack, hostile: median(stack))
