"""Weighted conflation: 1/v = Σ w_k/v_k / max w, m = v Σ w_k m_k/v_k / max w (FVBA's CF).

It is the product Π_k N(m_k, v_k)^(w_k / max w). The client with the most examples counts once, each
other client by the ratio of its number to the largest. The mean is RKLB's, the variance is RKLB's
times max w. With equal weights the rule is conflation.

It assumes what conflation does, and that weights say how much each client knows.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it in place of conflation if clients with few examples should narrow the aggregate less than
those with many. Conflation's notes on rounds hold here, too.

References: Hill and Miller, How to Combine Independent Data Sets for the Same Quantity, 2011; Ozer
et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA), 2022. FVBA's
public code computes these formulas by products of K variances, which underflow; here they are sums.
"""

from dataclasses import replace

from fedbary.aggregation.rklb import RULE as RKLB

RULE = replace(RKLB, name="WeightedConflation", relative=True, divergence=None)
