"""Which commit of the code a run was made by."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

CLONE_VARIABLE = "FEDBARY_CLONE"
"""Environment variable by which the command tells the server app which clone it runs."""


def git_commit(root: Path) -> str:
    """Return the commit of the code in `root`, with -dirty if it was changed.

    A Flower app's bundle has no history: there it is the commit of the clone that
    `fedbary simulate` bundled, or, from a bare `flwr run`, unknown and the bundle's name.
    """
    launched_from = os.environ.get(CLONE_VARIABLE)
    return _described(Path(launched_from) if launched_from else root)


@functools.cache
def _described(clone: Path) -> str:
    """Return the commit at the first call, of the code that this process has imported."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=clone, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return f"unknown, {clone.name}"
    return done.stdout.strip()
