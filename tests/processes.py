"""Which of Flower's servers are at work for a test."""

import os
from pathlib import Path

import psutil

MARK = "FEDBARY_TEST"
NAMES = ("flower-super", "flwr-", "ray::")


def marked(folder: Path) -> dict[str, str]:
    """An environment by which `servers_of` knows what a test has started."""
    return {**os.environ, MARK: str(folder)}


def servers_of(folder: Path) -> list[psutil.Process]:
    """Flower's servers, and what they have started, in an environment with the folder's mark."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, environment = process.info["cmdline"] or (), process.info["environ"] or {}
        flower = any(name in word for word in words for name in NAMES)
        if flower and environment.get(MARK) == str(folder):
            found.append(process)
    return found
