"""NormalisedGAA, GAA as BA-BFL's public code has it: m = Σ w m_k, v = Σ w² v_k / Σ w².

Equal posteriors thus keep their variance. With equal weights the rule is EAA. A client with many
examples has more influence on the variances than on the means.

It assumes nothing about the variances: they do not change the mean, which is FedAvg's.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

`rule=findings.protocol.normalised_gaa:RULE` runs it, with the repository in `PYTHONPATH`.
Compare it with the papers' numbers for GAA: their code computes this, not their formula Σ w² v.

Reference: the public code of BA-BFL (Jamoussi et al.); the formula of `GAA` is the paper's.
"""

import torch
from torch import Tensor

from fedbary.aggregation.rules import Rule
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
