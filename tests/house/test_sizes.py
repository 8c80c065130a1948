"""No file of code is long: one idea a file."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = (
    "benchmarks", "client_app", "docs", "examples", "fedbary", "findings", "server_app",
    "strategies",
)  # fmt: skip
LONGEST = 300


@pytest.mark.parametrize("room", CODE)
def test_no_file_is_longer(room):
    files = sorted((ROOT / room).rglob("*.py"))
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert lengths
    assert {file: lines for file, lines in lengths.items() if lines > LONGEST} == {}
