"""Paths as users write them, and files that strangers left there."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def user_path(path: Path | str) -> Path:
    """Return a path whose leading ``~`` is the user's home; of a user unknown here it stays."""
    return Path(os.path.expanduser(path))


def content_of(file: Path) -> bytes:
    """Return what a file holds; an OSError if it cannot be read, see `require_regular`."""
    require_regular(file)
    return file.read_bytes()


def require_regular(file: Path) -> None:
    """Raise an OSError for a pipe or a device, whose reader may wait for ever."""
    try:
        mode = file.stat().st_mode  # once: another process may remove the file meanwhile
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(f"{file} is a pipe or a device")
