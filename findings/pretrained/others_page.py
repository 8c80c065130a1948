"""Heads on other images: tables of docs/results/pretrained.md."""

from __future__ import annotations

from pathlib import Path

from findings.pretrained.conditions_page import HEADS, PAIRS, chosen, compared, of_condition
from findings.pretrained.page import read

OTHERS: dict[str, dict[str, object]] = {"Fashion-MNIST": {"dataset": "fashionmnist"}}
"""What differs from the first table, by its name on the page."""


def tables(results: Path) -> str:
    """Return the scores, the differences, and the chosen step sizes."""
    rows = read(results)
    groups = {name: of_condition(rows, settings) for name, settings in OTHERS.items()}
    heads = {"LDA": HEADS["LDA"], "Ridge": "Ridge, 1 round", **HEADS}
    tried = chosen(results / "choice", OTHERS, "test data")
    return "\n\n".join([compared(groups, heads, [*PAIRS, ("LDA", "one place")]), tried])
