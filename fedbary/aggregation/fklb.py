"""FKLB, forward-KL barycentre, moments matched to the mixture Σ w N(m_k, v_k).

m = Σ w m_k and v = Σ w v_k + Σ w m_k² − m²: argmin_q Σ w_k KL(p_k || q).

It assumes that any client may be right where they disagree: the spread of their means becomes
variance.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, in float64: squares of means are subtracted.

Use it for one round, or if the result should show where clients disagree. If clients differ,
variances grow from round to round, and predictions become underconfident.

Reference: Ozer et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA),
2022.
"""

from torch import Tensor

from fedbary.aggregation.rule import Rule
from fedbary.gaussian import kl_divergence, variance_power


def inverse(mean: Tensor, var: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """Return the moments; the spread of the means never lowers the variance below EAA's."""
    spread = (square - mean.square()).clamp(min=0)
    return mean, (var + spread).log()


RULE = Rule(
    "FKLB",
    forward=lambda mean, log_var: (mean, variance_power(log_var, 1), mean.square()),
    inverse=inverse,
    powers=(1, 1, 1),
    centred=True,
    divergence=lambda aggregate, posterior: kl_divergence(posterior, aggregate),
)
