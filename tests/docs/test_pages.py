"""The documentation's pages have what they promise, and lead where they say."""

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest
from flwr.common.config import validate_config

from fedbary.aggregation import RULES
from fedbary.methods import METHODS
from fedbary.settings.explain import parts

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOUR = ("It assumes ", "Messages: ", "Cost: ", "Use it ")


TEXTS = {part.name: part.text for part in parts()}


@pytest.mark.parametrize("name", [*METHODS, *RULES])
def test_a_method_or_rule_says_what_it_assumes_sends_and_costs_and_when_to_use_it(name):
    text = TEXTS[name]
    paragraphs = text.split("\n\n")
    places = [[p.startswith(words) for p in paragraphs].index(True) for words in FOUR]
    assert places == list(range(places[0], places[0] + len(FOUR)))
    assert re.search(r"^References?:", text, re.MULTILINE)


def anchors(file):
    """The anchors of a page's headings, as a code host makes them."""
    headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


OUTSIDE = [
    "README.md",
    "CONTRIBUTING.md",
    "AGENTS.md",
    "SECURITY.md",
    *sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("examples/*/README.md")),
]


@pytest.mark.parametrize("page", OUTSIDE)
def test_links_of_pages_outside_the_site_lead_somewhere(page):
    file = ROOT / page
    for link in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", file.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_is_a_page_or_two():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_python_blocks_import_from_here_is_there(page):
    for text in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "fedbary":
                module = importlib.import_module(node.module)
                for alias in node.names:
                    found = hasattr(module, alias.name)
                    assert found or importlib.import_module(f"{node.module}.{alias.name}")


def test_the_project_file_of_the_page_on_foreign_projects_is_whole(tmp_path):
    page = (ROOT / "docs" / "howto" / "foreign.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "app.py").write_text("server = None\nclient = None\n")
    assert validate_config(tomllib.loads(text), project_dir=tmp_path) == (True, [], [])
