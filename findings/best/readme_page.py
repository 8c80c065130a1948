"""The best settings in short: the table of the README."""

from __future__ import annotations

from pathlib import Path

from fedbary.study.table import result_rows
from findings.best.page import headline, read


def tables(results: Path) -> str:
    """Return the table in Markdown."""
    return headline(result_rows(read(results)))
