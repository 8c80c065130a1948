"""EAA, empirical arithmetic average: m = Σ w m_k, v = Σ w v_k."""

from fedbary.aggregation.rule import Rule
from fedbary.gaussian import variance_power

RULE = Rule(
    "EAA",
    forward=lambda mean, log_var: (mean, variance_power(log_var, 1)),
    inverse=lambda mean, var: (mean, var.log()),
)
