"""GAA, Gaussian arithmetic average, the law of Σ w X_k: m = Σ w m_k, v = Σ w² v_k.

It assumes that clients' errors are independent: the average of many is then surer than each. It is
no mean: K equal posteriors aggregate to one of a K-th of the variance.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server goes once over the replies, with one exponential per weight and client.

Use it where clients train from the prior, or for one round. If rounds start from the aggregate, a
client begins at a K-th of its own variance. Variances then fall by Σ w² per round, but for what
training widens them again. The strategy warns once when three rounds in a row have gone so.

The public code of BA-BFL and FVBA differs: the former divides by Σ w² (`rule=NormalisedGAA`); the
latter shrinks the prior's variance, too.

Reference: Ozer et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA),
2022.
"""

from dataclasses import replace

from fedbary.aggregation.eaa import RULE as EAA

RULE = replace(EAA, name="GAA", powers=(1, 2))
