"""Trimmed mean: for each coordinate, the mean without its h lowest and its h highest values.

Yin et al. (2018), Definition 2, with h = ⌊trim_fraction · K⌋ of K clients, on means and
log-variances. The mean of the remaining log-variances is the geometric mean of variances, as in
AALV. With at most h hostile clients every coordinate lies within the range of the honest ones.

It assumes at most h hostile clients, and honest ones that are alike. Every client counts once,
whatever number of examples it claims.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server sorts the clients' values of each weight.

Use it in place of the median if you know how many clients may be hostile: it averages over more of
the honest ones.

Reference: Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning: Towards
Optimal Statistical Rates, ICML 2018.
"""

import torch
from torch import Tensor

from fedbary.aggregation.ordered import ordered
from fedbary.aggregation.robust import CoordinateRule


def trimmed_mean(stack: Tensor, hostile: int) -> Tensor:
    """Return the mean over the clients [clients, weights] → [weights] without the extremes."""
    ascending = ordered(stack.numpy(force=True))
    kept = ascending[hostile : len(ascending) - hostile]
    return torch.from_numpy(sum(kept[1:], kept[0]) / len(kept)).to(stack.device)


RULE = CoordinateRule("TrimmedMean", trimmed_mean)
