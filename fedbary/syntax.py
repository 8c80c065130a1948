"""Python files as syntax trees; a process parses each text once."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

_parsed = lru_cache(maxsize=256)(ast.parse)


def tree(file: Path) -> ast.Module:
    """Return the syntax tree of a file, which is not to be changed."""
    return _parsed(file.read_text(encoding="utf-8"))
