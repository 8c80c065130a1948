"""EAA, empirical arithmetic average: m = Σ w m_k, v = Σ w v_k."""

from fedbary.aggregation.rule import Rule

RULE = Rule(
    "EAA",
    forward=lambda mean, log_var: (mean, log_var.exp()),
    inverse=lambda mean, var: (mean, var.log()),
)
