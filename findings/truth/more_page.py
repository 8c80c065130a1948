"""Distances from the true posterior's predictive at a milder split: a part of truth.md."""

from __future__ import annotations

from pathlib import Path

from findings.truth.page import by_split, read


def tables(results: Path) -> str:
    """Return the distances by method, and the tests."""
    return by_split(read(results))
