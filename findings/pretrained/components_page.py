"""Sites on 64 principal components: scores and bars, tables of docs/results/pretrained.md."""

from __future__ import annotations

from pathlib import Path

from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows
from findings.pretrained.bars_page import Bar, bars_table
from findings.pretrained.page import read, scores

SIDES = ["full 2", "full 3", "diagonal 5", "FedAvg 50", "one place"]
"""The sides of the table in its order; a number is that of rounds."""

BARS = [
    Bar("full 2", "one place", 0.01, 0.5),
    Bar("full 3", "one place", 0.005, 0.2),
    Bar("diagonal 5", "one place", 0.02, 0.5),
    Bar("full 2", "FedAvg 50", 0.0),
]


def tables(results: Path) -> str:
    """Return the scores, which bars are met, and FedAvg's NLL on validation data by step size."""
    rows = read(results)
    sites = rows["kind"] == "sites"
    named = rows["covariance"] + " " + rows["rounds"].astype(str)
    rows["kind"] = rows["kind"].mask(sites, rows["covariance"])
    rows["side"] = rows["side"].mask(sites, named)
    tried = result_rows(read_table(results / "choice")).sort_values("lr")
    body = [[f"{row.lr:g}", f"{row.nll:.4f}"] for row in tried.itertuples()]
    chosen = markdown_table(["FedAvg: `lr`", "NLL after round 50"], body)
    return "\n\n".join([scores(rows, SIDES), bars_table(rows, BARS), chosen])
