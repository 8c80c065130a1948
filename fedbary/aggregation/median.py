"""Median of each coordinate: of the means, and of the log-variances.

Yin et al. (2018), Definition 1. The median of the log-variances is that of the variances, the
standard deviations or the precisions. For an even number of clients it is the middle of the two
middle ones, so for variances their geometric mean. While less than half of the clients are hostile,
every coordinate lies within the range of the honest ones.

It assumes that most clients are honest and alike. It need not know how many are not. Every client
counts once, whatever number of examples it claims.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server puts the clients' values of each weight in order.

Use it against clients whose values lie far off. It slows learning if clients differ, and hardly
tells a flipped sign from an unusual client.

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
