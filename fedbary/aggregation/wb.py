"""WB, Wasserstein-2 barycentre: m = Σ w m_k, √v = Σ w √v_k (BA-BFL, eq. 8)."""

from fedbary.aggregation.rule import Rule
from fedbary.gaussian import variance_power

RULE = Rule(
    "WB",
    forward=lambda mean, log_var: (mean, variance_power(log_var, 1 / 2)),
    inverse=lambda mean, std: (mean, 2 * std.log()),
)
