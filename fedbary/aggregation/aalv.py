"""AALV, arithmetic average of log-variances: m = Σ w m_k, log v = Σ w log v_k.

The geometric mean of the variances.

It assumes nothing of how variances compare: means are FedAvg's, whatever they are.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server goes once over the replies, as for FedAvg: a sum of what was sent.

Use it as the plain control of the others: it is what Flower's FedAvg makes of a model whose tensors
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
