"""Conflation, the product of the posteriors: 1/v = Σ 1/v_k, m = v Σ m_k/v_k.

N(m, v) ∝ Π_k N(m_k, v_k) (Hill, 2011). Weights do not count: a client with more data has a larger
precision and so more influence. Deterministic tensors, which have no precision, are averaged by
size, the limit of v_k = ε/w_k. It is not a mean: K equal posteriors aggregate to one with a K-th of
the variance.

It assumes posteriors of different data under a weak prior, because the prior counts K times.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server goes once over the replies, with one exponential per weight and client.

Use it for one round, or with a weak prior; DWC counts the prior once. If rounds start from the
aggregate, a client begins at a K-th of its own variance, and variances may fall to a K-th per
round. The strategy warns once after three such rounds in a row. DWC's clients begin at their own
width.

References: Hill, Conflations of Probability Distributions, 2011; Fischer et al., Federated Bayesian
Deep Learning: The Application of Statistical Aggregation Methods to Bayesian Models, 2024.
"""

from dataclasses import replace

from fedbary.aggregation.rklb import RULE as RKLB

RULE = replace(RKLB, name="Conflation", powers=(0, 0), divergence=None)
