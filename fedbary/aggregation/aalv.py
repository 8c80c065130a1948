"""AALV, arithmetic average of log-variances: m = Σ w m_k, log v = Σ w log v_k.

The variance is the weighted geometric mean of the clients' variances.

It assumes nothing about the variances: they do not change the mean, which is FedAvg's.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies and sums them, as for FedAvg.

Use it as the baseline of the other rules. Flower's FedAvg does the same to a model whose tensors
are means and log-variances.

Reference: Ozer et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA),
2022.
"""

from fedbary.aggregation.rule import Rule

RULE = Rule(
    "AALV",
    forward=lambda mean, log_var: (mean, log_var),
    inverse=lambda mean, log_var: (mean, log_var),
)
