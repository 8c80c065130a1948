"""Weighted conflation: 1/v = Σ w_k/v_k / max w, m = v Σ w_k m_k/v_k / max w (FVBA's CF).

The product Π_k N(m_k, v_k)^(w_k / max w): the client with the most examples counts once, the others
by their share of its number. The mean is RKLB's, the variance RKLB's times max w; with equal
weights it is conflation.

It assumes what conflation does, and weights that say how much a client knows.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server goes once over the replies, with one exponential per weight and client.

Use it in place of conflation if clients with few examples should narrow the aggregate less than
those with many. Conflation's notes on rounds hold here, too.

References: Hill and Miller, How to Combine Independent Data Sets for the Same Quantity, 2011; Ozer
et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA), 2022. Its public
code has these formulas by products of K variances, which underflow; here they are sums.
"""

from dataclasses import replace

from fedbary.aggregation.rklb import RULE as RKLB

RULE = replace(RKLB, name="WeightedConflation", relative=True, divergence=None)
