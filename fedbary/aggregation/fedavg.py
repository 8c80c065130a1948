"""FedAvg: the weighted mean of parameters, θ = Σ w θ_k.

McMahan et al. (2017), eq. 1, for deterministic tensors. It averages a Gaussian tensor's parameters
as this package stores them, mean and log-variance, as Flower's FedAvg does to such a model. It
equals AALV there.

It assumes nothing of a posterior: it is for networks of numbers, `bayesian_layers=0`.

Messages: the network, once each way.

Cost: the server goes once over the replies.

Use it for comparison: any other method should be better under the same budget.

Reference: McMahan, Moore, Ramage, Hampson and Agüera y Arcas, Communication-Efficient Learning of
Deep Networks from Decentralized Data, AISTATS 2017.
"""

from fedbary.aggregation.rule import Rule

RULE = Rule(
    "FedAvg",
    forward=lambda mean, log_var: (mean, log_var),
    inverse=lambda mean, log_var: (mean, log_var),
)
