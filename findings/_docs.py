"""The pages of the documentation with results: their tables, and the numbers in their sentences.

A page says what makes its tables by a comment, `<!-- tables: MODULE FOLDER -->`, both of findings/,
or `MODULE:PART FOLDER` where a module makes several parts.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
MADE = re.compile(r"<!-- tables: ([\w.]+):?(\w*) ([\w/-]+) -->")
TABLE = re.compile(r"(?m)^\|.*\|$(?:\n\|.*\|$)+")
NUMBER = re.compile(r"(?<![\w.,/])(?<!\w-)\d*\.\d+(?![\w.]*\w)")
LINK = re.compile(r"\]\(([^)#\s]+\.md)")
NO_SENTENCE = re.compile(r"(?ms)^```.*?^```|<!--.*?-->|`[^`]*`|\]\([^)]*\)|^#.*?$|Python ≥ [\d.]+")
"""What tells no result: blocks of code, comments, code, links, headings, versions."""


@dataclass(frozen=True)
class Made:
    """What makes a part of a page: functions of a module, and the folder of the runs.

    `tables` returns tables in Markdown, or yields them. `facts`, where there is one, yields numbers
    that sentences have and tables do not; `picture` returns a figure.
    """

    module: ModuleType
    part: str
    folder: Path

    def function(self, kind: str) -> Callable[[Path], Any] | None:
        """Return a function of the part: `tables`, or of part `x` `x_tables`."""
        return getattr(self.module, f"{self.part}_{kind}" if self.part else kind, None)

    @cached_property
    def tables(self) -> list[str]:
        """The tables, in the order in which they are made."""
        made = self.function("tables")(self.folder)  # type: ignore[misc]
        return TABLE.findall(made if isinstance(made, str) else "\n\n".join(made))


@cache
def commands() -> dict[Path, list[Made]]:
    """Return each page with what makes its parts."""
    found: dict[Path, list[Made]] = {}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for name, part, folder in MADE.findall(page.read_text(encoding="utf-8")):
            module = import_module(f"findings.{name}")
            found.setdefault(page, []).append(Made(module, part, ROOT / "findings" / folder))
    return found


def tables_of(made: Iterable[Made]) -> list[str]:
    """Return every table, in the order in which it is made."""
    return [table for each in made for table in each.tables]


def filled(text: str, tables: Sequence[str]) -> str:
    """Return a page with these tables, each in the place of the next that has its first line.

    Raises
    ------
    ValueError
        If there is none.
    """
    places = {}
    for table in tables:
        head = table.partition("\n")[0]
        start = text.find(f"\n{head}\n", places.get(head, 0)) + 1
        if not start:
            raise ValueError(f"no table for: {head}")
        end = TABLE.match(text, start).end()  # type: ignore[union-attr]
        text = text[:start] + table + text[end:]
        places[head] = start + len(table)
    return text


def loose(page: Path) -> list[str]:
    """Return the numbers in a page's sentences that its tables, grids and `facts` do not have.

    Tables are also those of pages that it links to. A sentence's number may have fewer digits.
    """
    text, every = page.read_text(encoding="utf-8"), commands()
    near = [page, *((page.parent / link).resolve() for link in LINK.findall(text))]
    tables = [table for each in near for table in tables_of(every.get(each, []))]
    known = {float(number) for table in tables for number in NUMBER.findall(table)}
    for made in every.get(page, []):
        for grid in made.folder.rglob("*.yaml"):
            known.update(_values(yaml.safe_load(grid.read_text(encoding="utf-8"))))
        if facts := made.function("facts"):
            known.update(map(abs, facts(made.folder)))
    sentences = NO_SENTENCE.sub(" ", TABLE.sub(" ", text))
    return [
        number
        for number in NUMBER.findall(sentences)
        for places in [len(number.partition(".")[2])]
        if not any(abs(value - float(number)) <= 0.501 * 10**-places for value in known)
    ]


def _values(content: object) -> Iterator[float]:
    if isinstance(content, dict | list):
        for value in content.values() if isinstance(content, dict) else content:
            yield from _values(value)
    elif isinstance(content, float):
        yield content
