"""The weight of the KL and the rate of log-variances: the tables of docs/howto/variances.md."""

from __future__ import annotations

from pathlib import Path

from fedbary.report.cells import ACCURACY, NLL, Metric
from fedbary.study.table import read_table, result_rows
from findings._pairs import scores_table

ECE = Metric("ece", "ECE %", 100, 2)
CHOICES = {"kl_weight": ("kl-weights", (ACCURACY, NLL, ECE)), "log_var_lr": ("log-var-lr", (NLL,))}
"""What was tried, the folder within of its runs, and what is shown of them."""


def tables(results: Path) -> str:
    """Return a table a setting."""
    parts = []
    for setting, (folder, metrics) in CHOICES.items():
        rows = result_rows(read_table(results / folder))
        tried = {f"{value:g}": runs for value, runs in rows.groupby(setting, sort=False)}
        parts.append(scores_table(f"`{setting}`", tried, metrics))
    return "\n\n".join(parts)
