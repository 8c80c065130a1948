"""Pages, notebooks, docstrings, help and settings are easy to read: short, the subject first."""

import ast
import inspect
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for page in (ROOT / "docs").rglob("*.md") if "reference" not in page.parts),
]
CODE = [
    file
    for room in ("fedbary", "strategies", "client_app", "server_app")
    for file in (ROOT / room).rglob("*.py")
]

FRONTED = re.compile(r"(Of|Whoever|Who|What|Whether|How|Which|Where|Under|By)\b(?!.*\?$)")
"""How a sentence begins whose subject comes late; a question may."""

ENDS = re.compile(r"(?<=[.!?:])\s+(?=[A-Z(\"'])|(?<=[.!?])\s+(?=\w+: )")
"""Where a sentence ends; the next may begin with a value's name and a colon, "none: never"."""


def sentences(text):
    """Yield the sentences of a page: no code, tables, headings, pictures or comments.

    One or two words are no sentence but a label: a column's heading, a value and its meaning.
    """
    text = re.sub(r"(?s)```.*?```|<!--.*?-->", " ", text)
    text = re.sub(r"(?m)^\s*(\||#|!\[).*$", "", text)
    text = re.sub(r"(?m)^\s*([-*]|\d+\.)\s+", "\n\n", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"[*_]", "", re.sub(r"`[^`]*`", "CODE", text))
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in ENDS.split(" ".join(paragraph.split())):
            if len(sentence.split()) > 2:
                yield sentence


def docstrings(node):
    """Yield the docstrings of modules, classes, functions and constants."""
    yield ast.get_docstring(node) or ""
    if isinstance(node, ast.Module | ast.ClassDef):
        for before, after in pairwise(node.body):
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                yield inspect.cleandoc(getattr(after.value, "value", ""))
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from docstrings(child)


def helps(tree):
    """Yield the texts of options, as `--help` prints them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "help":
            yield ast.literal_eval(node.value)


def prose(docstring):
    """Return a docstring's text: no formulas, no headings of sections, no names with types."""
    text = re.sub(r"(?m)^\w[^\n]*\n-{3,}$", "\n#", docstring)
    before, *sections = text.split("\n#")
    yield re.sub(r"(?m)^ {4,}.*$", "\n", before)
    for section in sections:
        yield re.sub(r"(?m)^(\S| {8}).*$", "\n", section)


def said_in_code():
    for file in CODE:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for text in docstrings(tree):
            for part in prose(text):
                yield from sentences(part)
        if file.parent.name == "commands":
            for text in helps(tree):
                yield from sentences(text)


def said_in_settings():
    text = (ROOT / "simulation.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^(\s*[\w-]+:[^#\n]*|$)", "\n\n", text)
    yield from sentences(re.sub(r"(?m)^ *# ?", "", text))


def said_on_pages():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        yield from sentences(page.read_text(encoding="utf-8"))
    for notebook in (ROOT / "docs" / "tutorials").glob("*.ipynb"):
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                yield from sentences("".join(cell["source"]))


@pytest.mark.parametrize("said", [said_on_pages, said_in_code, said_in_settings])
def test_sentences_are_short_and_begin_with_their_subject(said):
    every = list(said())
    words = [len(sentence.split()) for sentence in every]
    assert sum(words) / len(words) <= 15
    assert sum(count > 30 for count in words) / len(words) <= 0.04
    fronted = [sentence for sentence in every if FRONTED.match(sentence)]
    assert len(fronted) / len(every) <= 0.01, fronted


def test_no_line_of_text_is_longer_than_120_characters():
    settings = (ROOT / "simulation.yaml").read_text(encoding="utf-8")
    assert max(map(len, settings.splitlines())) <= 120
    for page in PAGES:
        text = re.sub(r"(?s)```.*?```", "", page.read_text(encoding="utf-8"))
        lines = [
            line for line in text.splitlines() if not line.startswith(("|", "!", "<!--", "[!"))
        ]
        assert not [line for line in lines if len(line) > 120], page
