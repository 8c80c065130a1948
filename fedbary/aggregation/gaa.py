"""GAA, Gaussian arithmetic average, the law of Σ w X_k: m = Σ w m_k, v = Σ w² v_k.

It assumes that clients' errors are independent: their average is then more certain than each of
them. It is not a mean: K equal posteriors give one with 1/K of the variance.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it where clients train from the prior, or for one round. If rounds start from the aggregate, a
client begins with 1/K of its own variance. Variances then fall by the factor Σ w² in every round,
unless training widens them again. The strategy warns once, after three such rounds in a row.

The papers' public code differs from this formula. BA-BFL's divides by Σ w²
(`findings/protocol/normalised_gaa.py`); FVBA's shrinks the prior's variance too.

Reference: Ozer et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA),
2022.
"""

from dataclasses import replace

from fedbary.aggregation.eaa import RULE as EAA

RULE = replace(EAA, name="GAA", powers=(1, 2))
