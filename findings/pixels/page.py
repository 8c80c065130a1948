"""Masks and several labels: the tables of docs/howto/pixels.md."""

from __future__ import annotations

from pathlib import Path

from fedbary.report.cells import Metric
from fedbary.study.table import read_table, result_rows
from findings._pairs import scores_table

ECE = Metric("ece", "ECE %", 100, 1)
TASKS = {
    "segmentation": (
        Metric("iou", "mean IoU %", 100, 1),
        Metric("nll", "NLL, nats a pixel"),
        ECE,
    ),
    "multilabel": (
        Metric("f1", "macro F1 %", 100, 1),
        Metric("auroc", "macro AUROC %", 100, 1),
        Metric("nll", "NLL, nats a decision"),
        ECE,
    ),
}


def tables(results: Path) -> str:
    """Return a table a task in Markdown."""
    rows = result_rows(read_table(results))
    arm = rows["rule"].where(rows["clients"] > 1, "in one place")
    return "\n\n".join(
        scores_table(f"`{task}`", dict(list(of_it.groupby(arm, sort=False))), metrics)
        for task, metrics in TASKS.items()
        for of_it in [rows[rows["task"] == task]]
    )
