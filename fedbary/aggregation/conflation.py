"""Conflation, the product of the posteriors: 1/v = Σ 1/v_k, m = v Σ m_k/v_k.

N(m, v) ∝ Π_k N(m_k, v_k) (Hill, 2011). Weights are ignored: a client with more data has a larger
precision and so more influence. Deterministic tensors have no precision. They are averaged by
weight, which is the limit of v_k = ε/w_k for ε → 0. The rule is not a mean: K equal posteriors give
one with 1/K of the variance.

It assumes that clients hold different data and that the prior is weak: the prior counts K times.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it for one round, or with a weak prior; the method DWC counts the prior once. If rounds start
from the aggregate, a client begins with 1/K of its own variance. Variances may then fall to 1/K in
every round. The strategy warns once, after three such rounds in a row. DWC's clients begin with
their own variance.

References: Hill, Conflations of Probability Distributions, 2011; Fischer et al., Federated Bayesian
Deep Learning: The Application of Statistical Aggregation Methods to Bayesian Models, 2024.
"""

from dataclasses import replace

from fedbary.aggregation.rklb import RULE as RKLB

RULE = replace(RKLB, name="Conflation", powers=(0, 0), divergence=None)
