"""WB, Wasserstein-2 barycentre: m = Σ w m_k, √v = Σ w √v_k (BA-BFL, eq. 8)."""

from fedbary.aggregation.rule import Rule

RULE = Rule(
    "WB",
    forward=lambda mean, log_var: (mean, (log_var / 2).exp()),
    inverse=lambda mean, std: (mean, 2 * std.log()),
)
