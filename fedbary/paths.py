"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path


def user_path(path: Path | str) -> Path:
    """Return a path whose leading ``~`` is the user's home; of a user unknown here it stays."""
    return Path(os.path.expanduser(path))
