"""GAA, Gaussian arithmetic average, the law of Σ w X_k: m = Σ w m_k, v = Σ w² v_k.

It assumes that clients' errors are independent: the average of many is then surer than each. It is
no mean: K equal posteriors aggregate to one of a K-th of the variance.

What travels: the posterior, once either way: two numbers a Gaussian weight.

What it costs: the server goes once over the replies, with an exponential a weight and client.

Use it where clients train from the prior, or for one round. Where rounds start from the aggregate,
variances fall by Σ w² a round, unless training widens them again.

The public code of BA-BFL and FVBA differs: the former divides by Σ w² (`rule=NormalisedGAA`); the
latter shrinks the prior's variance, too.

Reference: Ozer et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA),
2022.
"""

from dataclasses import replace

from fedbary.aggregation.eaa import RULE as EAA

RULE = replace(EAA, name="GAA", powers=(1, 2))
