"""Heads on other images and features: tables of docs/results/pretrained.md."""

from __future__ import annotations

from pathlib import Path

from findings.pretrained.conditions_page import HEADS, PAIRS, chosen, compared, of_condition
from findings.pretrained.page import read

OTHERS: dict[str, dict[str, object]] = {
    "Fashion-MNIST": {"dataset": "fashionmnist"},
    "CIFAR-10 through EfficientNet-Lite2": {"dataset": "cifar10"},
}
"""What differs from the first table, by its name on the page."""


def tables(results: Path) -> str:
    """Return the scores, the differences, and the chosen step sizes."""
    rows = read(results)
    groups = {name: of_condition(rows, settings) for name, settings in OTHERS.items()}
    heads = {"LDA": HEADS["LDA"], "Ridge": "Ridge, 1 round", **HEADS}
    tried = chosen(results / "choice", OTHERS, "held_out.nll")
    return "\n\n".join([compared(groups, heads, [*PAIRS, ("LDA", "one place")]), tried])
