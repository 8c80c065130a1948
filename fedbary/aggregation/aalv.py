"""AALV, arithmetic average of log-variances: m = Σ w m_k, log v = Σ w log v_k."""

from fedbary.aggregation.rule import Rule

RULE = Rule(
    "AALV",
    forward=lambda mean, log_var: (mean, log_var),
    inverse=lambda mean, log_var: (mean, log_var),
)
