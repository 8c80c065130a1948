"""NormalisedGAA, GAA as BA-BFL's public code has it: m = Σ w m_k, v = Σ w² v_k / Σ w².

So the variances of equal posteriors stay what they are, and it is EAA at equal weights. A client of
many examples has more say in the variances than in the means.

It assumes nothing of how variances compare: means are FedAvg's, whatever they are.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server goes once over the replies, with one exponential per weight and client.

Use it to compare with what the papers print of GAA, whose formula there, Σ w² v, is not what their
code computes. Else EAA is the plainer choice.

Reference: the public code of BA-BFL (Jamoussi et al.); the formula of `GAA` is the paper's.
"""

import torch
from torch import Tensor

from fedbary.aggregation.rule import Rule
from fedbary.gaussian import variance_power


def forward(mean: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (m, v, 1), of which the last two are summed by the squares of the weights."""
    return mean, variance_power(log_var, 1), torch.ones_like(log_var)


RULE = Rule(
    "NormalisedGAA",
    forward,
    inverse=lambda mean, var, squares: (mean, (var / squares).log()),
    powers=(1, 2, 2),
)
