"""A report as one Markdown file with its pictures, and the same as one self-contained HTML page."""

from __future__ import annotations

import base64
import html
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


DPI = 110

SHRINKS = 520
"""Pixels up to which a picture shrinks to a telephone's width: its letters stay legible."""

COLOURS = 48
"""Colours of a picture: a palette makes a report a third as large."""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 74rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff }}
h1, h2, h3 {{ line-height: 1.25 }} h2 {{ margin-top: 2.5rem; border-bottom: 1px solid #ccc }}
p {{ max-width: 48rem }} p:has(img) {{ max-width: none }}
.picture {{ display: inline-block; max-width: 100%; overflow-x: auto; vertical-align: top }}
img {{ max-width: 100%; height: auto; vertical-align: top }}
.picture + .picture img, .picture:has(+ .picture) img {{ max-width: min(100%, 27rem) }}
.picture .wide {{ max-width: none !important }}
summary {{ cursor: pointer }}
.table {{ overflow-x: auto }} code {{ font-size: .9em }}
table {{ border-collapse: collapse; width: max-content; margin: 1rem 0; font-size: .875rem;
        font-variant-numeric: tabular-nums }}
th, td {{ padding: .2rem .6rem; border-bottom: 1px solid #e3e3e3; text-align: left;
         white-space: nowrap }}
th {{ border-bottom: 2px solid #888; vertical-align: bottom; white-space: normal;
     max-width: 9rem }}
th:first-child, td:first-child {{ position: sticky; left: 0; background: #fff }}
td:nth-child(2):last-child {{ white-space: normal; overflow-wrap: anywhere; max-width: 36rem }}
@media (max-width: 40rem) {{
  td:first-child {{ white-space: normal; overflow-wrap: anywhere; max-width: 9rem }}
  td:nth-child(2):last-child {{ max-width: 12rem }} th, td {{ padding: .2rem .4rem }} }}
</style></head>
<body>
{body}
</body></html>
"""


class Document:
    """Collects text, tables and pictures and writes them to a folder.

    Text that is not `Markup` is shown literally: no HTML element comes from data.

    Parameters
    ----------
    folder
        Folder of the two pages and the folder `figures`.
    title
        The heading.
    name
        Name of the pages, before `.md` and `.html`.

    Attributes
    ----------
    numbers : dict
        Numbers of the page that programs read, by name.
    """

    def __init__(self, folder: Path, title: str, name: str = "report") -> None:
        self._folder = folder
        self._title = title
        self._name = name
        self._parts = [f"# {escape(title)}"]
        self._named: Counter[str] = Counter()
        self._drawn: dict[str, Figure] = {}
        self.numbers: dict[str, Any] = {}

    def heading(self, text: str, level: int = 2) -> None:
        """Add a heading."""
        self._parts.append(f"{'#' * level} {escape(text)}")

    def text(self, template: str, **texts: object) -> None:
        """Add a paragraph: Markdown of the report's own, whose `{name}` stand for texts."""
        self._parts.append(paragraph(template, **texts))

    def bullets(self, lines: Iterable[str]) -> None:
        """Add a list of texts, each once."""
        self._parts.append("\n".join(f"- {escape(line)}" for line in dict.fromkeys(lines)))

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], folded: str = "") -> None:
        """Add a table; with `folded` it opens at a click on that text."""
        text: str = table(header, rows)
        if folded:
            text = f"<details><summary>{html.escape(folded)}</summary>\n\n{text}\n\n</details>"
        self._parts.append(text)

    def figures(self, drawn: Iterable[tuple[str, Figure]], caption: str) -> None:
        """Add pictures side by side, with a caption; one of a name that is taken gets a number."""
        named = []
        for name, figure in drawn:
            self._named[name] += 1
            if (number := self._named[name]) > 1:
                name = f"{name}-again-{number}"
            self._drawn[f"figures/{name}.png"] = figure
            named.append(f"![{name}](figures/{name}.png)")
        self._parts.append(" ".join(named) + f"\n\n{italic(caption)}")

    def section(self, heading: str) -> list[str]:
        """Return the texts and tables below a heading, without pictures; none without it.

        An empty heading gives what comes before the first.
        """
        level = f"## {escape(heading)}" if heading else self._parts[0]
        if level not in self._parts:
            return []
        rest = self._parts[self._parts.index(level) + 1 :]
        until = next((k for k, part in enumerate(rest) if part.startswith("## ")), len(rest))
        return [part for part in rest[:until] if not part.startswith("![")]

    @property
    def headings(self) -> list[Markup]:
        """Headings of the sections."""
        return [Markup(part[3:]) for part in self._parts if part.startswith("## ")]

    def write(self) -> None:
        """Write the pictures and the two pages."""
        from markdown_it import MarkdownIt

        for name, figure in self._drawn.items():
            (self._folder / "figures").mkdir(parents=True, exist_ok=True)
            write_small(figure, self._folder / name)
        markdown = "\n\n".join(self._parts) + "\n"
        (self._folder / f"{self._name}.md").write_text(markdown, encoding="utf-8")
        body = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
        body = body.replace("<table>", '<div class="table"><table>')
        body = body.replace("</table>", "</table></div>")
        body = re.sub(r'<img src="(figures/[^"]+)"', self._embedded, body)
        body = re.sub(r"(<img [^>]*>)", r'<span class="picture">\1</span>', body)
        page = PAGE.format(title=html.escape(self._title), body=body)
        (self._folder / f"{self._name}.html").write_text(page, encoding="utf-8")

    def _embedded(self, match: re.Match[str]) -> str:
        """Return an image's start with its bytes; a wide one scrolls where it has no room."""
        from PIL import Image

        content = (self._folder / match[1]).read_bytes()
        with Image.open(io.BytesIO(content)) as picture:
            wide = ' class="wide"' if picture.width > SHRINKS else ""
        return f'<img{wide} src="data:image/png;base64,{base64.b64encode(content).decode()}"'


def write_small(figure: Figure, file: Path, dpi: int = DPI) -> None:
    """Write a picture with a palette of `COLOURS`."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi)
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
