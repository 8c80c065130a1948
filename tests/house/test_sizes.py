"""The checkout stays small."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 9_000_000
"""Bytes of a checkout without `.git`."""


def test_the_checkout_is_no_larger():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in listed.stdout.decode().split("\0")[:-1]]
    assert sum(file.stat().st_size for file in files if file.exists()) <= LARGEST
