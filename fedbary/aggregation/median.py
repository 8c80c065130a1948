"""Median of each coordinate: of the means, and of the log-variances.

Yin et al. (2018), Definition 1. Medians of log-variances, variances, standard deviations and
precisions agree. For an even number of clients the median is the mean of the two middle values. For
variances that is their geometric mean. If less than half of the clients are hostile, every
coordinate lies within the range of the honest ones.

It assumes that most clients are honest and alike. It does not need the number of hostile clients.
Every client counts once, whatever number of examples it claims.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server sorts the clients' values of each weight.

Use it against clients whose values lie far from the others'. It slows learning if clients differ.
It hardly tells a client that flips signs from an honest but unusual one.

Reference: Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning: Towards
Optimal Statistical Rates, ICML 2018.
"""

from torch import Tensor

from fedbary.aggregation.robust import CoordinateRule
from fedbary.aggregation.trimmed_mean import trimmed_mean


def median(stack: Tensor) -> Tensor:
    """Return the median over the clients, [clients, weights] → [weights]."""
    return trimmed_mean(stack, (len(stack) - 1) // 2)


RULE = CoordinateRule("Median", lambda stack, hostile: median(stack), counts_hostile=False)
