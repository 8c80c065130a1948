"""FedAvg: the weighted mean of parameters, θ = Σ w θ_k.

McMahan et al. (2017), eq. 1, for deterministic tensors. Of a Gaussian tensor it averages the
parameters as this package stores them, mean and log-variance, as Flower's FedAvg does to such a
model: there it equals AALV.
"""

from fedbary.aggregation.rule import Rule

RULE = Rule(
    "FedAvg",
    forward=lambda mean, log_var: (mean, log_var),
    inverse=lambda mean, log_var: (mean, log_var),
)
