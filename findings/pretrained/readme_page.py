"""Heads on a pretrained network's features in short: the table of the README."""

from __future__ import annotations

from pathlib import Path

from findings.pretrained.page import FRONT, read, scores


def tables(results: Path) -> str:
    """Return the table in Markdown."""
    return scores(read(results), FRONT)
