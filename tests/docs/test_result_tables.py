"""Pages show the tables that their scripts make of the results in the repository."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    match[1]: (page, match[2])
    for page in (ROOT / "docs/results").glob("*.md")
    for match in re.finditer(r"python -m (benchmarks\.\w+) (results/[\w-]+)\n", page.read_text())
    if hasattr(importlib.import_module(match[1]), "tables")
}


def test_there_are_such_pages():
    assert PAGES


@pytest.mark.parametrize("module", PAGES)
def test_a_page_holds_every_table_that_its_script_makes(module):
    page, results = PAGES[module]
    text = page.read_text()
    made = importlib.import_module(module).tables(ROOT / results)
    for table in re.findall(r"(?m)^\|(?:.*\n?)+?(?=\n|\Z)", made):
        assert table.strip() in text, f"{page.name} has another table than: {table[:200]}"
