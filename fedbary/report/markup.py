"""Markdown of a report, kept apart from text, which may hold anything.

A `Markup` is Markdown. Every other string is text, which `escape` turns into Markdown that shows
exactly its characters. The result of an f-string is text again, so nothing passes unescaped by
mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

SPECIAL = re.compile(r"[\\`*\[\]<>&~$#]|(?<![^\W_])_+|_+(?![^\W_])")
"""Characters with a meaning within a line; underscores within a word have none."""

BLOCK = re.compile(r"[-+=]|\d+(?=[.)])")
"""Characters that begin a list or a rule at the start of a paragraph."""


class Markup(str):
    """Markdown, taken as it is."""


def escape(text: str) -> Markup:
    """Return Markdown that shows a text, in one line; `Markup` is returned as it is."""
    if isinstance(text, Markup):
        return text
    whole = " ".join(text.encode(errors="replace").decode().split())
    return Markup(SPECIAL.sub(lambda found: "".join(f"\\{c}" for c in found[0]), whole))


def paragraph(template: str, **texts: object) -> Markup:
    """Return a paragraph: Markdown whose `{name}` stand for texts, or for `Markup`."""
    escaped = {name: escape(t if isinstance(t, str) else str(t)) for name, t in texts.items()}
    filled = " ".join(template.split()).format(**escaped)
    if begins := BLOCK.match(filled):
        at = begins.end() if begins[0].isdigit() else 0
        filled = f"{filled[:at]}\\{filled[at:]}"
    return Markup(filled)


def bold(text: str) -> Markup:
    """Return a text in bold."""
    return Markup(f"**{escape(text)}**")


def italic(text: str) -> Markup:
    """Return a text in italics."""
    return Markup(f"*{escape(text)}*")


def code(text: str) -> Markup:
    """Return a text as code, between more backticks than it holds in a row."""
    whole = " ".join(text.encode(errors="replace").decode().split())
    fence = "`" * (1 + max(map(len, re.findall("`+", whole)), default=0))
    padding = " " if whole[:1] == "`" or whole[-1:] == "`" else ""
    return Markup(f"{fence}{padding}{whole}{padding}{fence}" if whole else "")


def listed(parts: list[str]) -> Markup:
    """Return texts or `Markup` with commas between."""
    return Markup(", ".join(map(escape, parts)))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table of texts or `Markup`."""
    head, *body = ([escape(cell) for cell in line] for line in (header, *rows))
    return markdown_table(head, body)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table whose cells are Markdown already."""
    lines = [header, ["---"] * len(header), *rows]
    cells = [[cell.replace("|", "\\|") or " " for cell in line] for line in lines]
    return Markup("\n".join(f"| {' | '.join(line)} |" for line in cells))
