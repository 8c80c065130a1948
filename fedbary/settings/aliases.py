"""Protection from YAML whose aliases stand for too many values."""

from __future__ import annotations

import yaml

MOST_VALUES = 10**6
"""Largest number of values of a file, each alias written out."""


def require_short(text: str) -> None:
    """Raise a ValueError if YAML stands for too many values once its aliases are written out.

    Ten lines of ten aliases each stand for 10^10 values. It ignores files that cannot be read.
    """
    if "*" not in text:
        return
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return
    if root is not None and _values(root, {}) > MOST_VALUES:
        raise ValueError(
            f"its aliases stand for more than {MOST_VALUES:,} values, or for themselves"
        )


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node stands for; too many if it holds itself."""
    if id(node) not in known:
        known[id(node)] = MOST_VALUES + 1  # while it is counted
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_values(part, known) for part in inner)
    return known[id(node)]
