"""No file of code is long: one idea a file. The checkout stays small."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = (
    "benchmarks", "client_app", "docs", "examples", "fedbary", "findings", "server_app",
    "strategies",
)  # fmt: skip
LONGEST = 300
LARGEST = 10_000_000
"""Bytes of a checkout without `.git`."""


@pytest.mark.parametrize("room", CODE)
def test_no_file_is_longer(room):
    files = sorted((ROOT / room).rglob("*.py"))
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert lengths
    assert {file: lines for file, lines in lengths.items() if lines > LONGEST} == {}


def test_the_checkout_is_no_larger():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in listed.stdout.decode().split("\0")[:-1]]
    assert sum(file.stat().st_size for file in files if file.exists()) <= LARGEST
