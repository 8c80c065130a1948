"""FedAvg: the weighted mean of parameters, θ = Σ w θ_k.

For deterministic tensors it is eq. 1 of McMahan et al. (2017). For a Gaussian tensor it averages
the mean and the log-variance, as Flower's FedAvg does. There it equals AALV.

It assumes no posterior: it is for networks without Gaussian weights, `bayesian_layers=0`.

Messages: the network, once each way.

Cost: the server makes one pass over the replies.

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
