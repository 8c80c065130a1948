"""The commit of the code that makes a run, and a digest of the code that a process has imported."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from pathlib import Path

CLONE_VARIABLE = "FEDBARY_CLONE"
"""Environment variable that tells the server app the path of the clone."""


APP_KEY = "app-code"
"""Entry of the server's first message to a node: the digest of its code."""

_PACKAGE = Path(__file__).parents[1]


ROOMS = ("strategies", "client_app", "server_app")
"""Folders that lie in the package when it is installed, and beside it in a clone."""


def code_files() -> dict[str, Path]:
    """Return the Python files of fedbary and the apps by their path in the installed package."""
    beside = [_PACKAGE.parent] if (_PACKAGE.parent / "simulation.yaml").is_file() else []
    files = {
        file.relative_to(root).as_posix(): file
        for root in beside
        for room in ROOMS
        for file in (root / room).rglob("*.py")
    }
    return files | {file.relative_to(_PACKAGE).as_posix(): file for file in _PACKAGE.rglob("*.py")}


@functools.cache
def app_digest() -> str:
    """Return a digest of fedbary's Python files and the apps', alike in a clone and a wheel."""
    files = code_files()
    found = hashlib.sha256()
    for name in sorted(files):
        found.update(f"{name}\n{hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def git_commit(root: Path) -> str:
    """Return the commit of the code in `root`, with -dirty and a hash of what was changed.

    A Flower app's bundle has no history: there it is the commit of the clone that `fedbary
    simulate` bundled. It is unknown for a bare `flwr run` and an installed fedbary.
    """
    launched_from = os.environ.get(CLONE_VARIABLE)
    return _described(Path(launched_from) if launched_from else root)


@functools.cache
def _described(clone: Path) -> str:
    """Return the commit at the first call, of the code that this process has imported."""
    if not (clone / ".git").exists():  # the history of a folder around it is not this code's
        return "unknown"
    try:
        commit = _git(clone, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
        changed = _git(clone, "diff", "HEAD") if commit.endswith(b"-dirty") else b""
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    mark = f"-{hashlib.sha256(changed).hexdigest()[:8]}" if changed else ""
    return f"{commit.decode()}{mark}"


def _git(clone: Path, *words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=clone, capture_output=True, timeout=10, check=True)
    return done.stdout.strip()
