"""What mkdocs makes beside the pages of this folder: pages and tables from the code's own texts.

A method's page is its module's docstring with its parameters, a rule's the string below it.
`<!-- settings -->` becomes the table of simulation.yaml, `<!-- metrics -->` that of a line of
metrics.jsonl, `<!-- parts: inference -->` what the files of that setting's values say, `<!-- rules
-->` a table of the rules, `<!-- report: NAME, HEADING -->` that section of what `fedbary report
findings/NAME` writes. Links to files of the repository that are no pages lead to copies of them in
the site.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedbary.figures.document import markdown_table
from fedbary.methods import Method
from fedbary.parts.parameters import NONE, Parameter, declared
from fedbary.parts.registry import rules
from fedbary.report.report import write_report
from fedbary.runs.schema import ENTRIES
from fedbary.settings.explain import Part, parts, settings
from fedbary.settings.owners import methods, owners

DOCS = Path(__file__).parent
ROOT = DOCS.parent
TOP = {"CONTRIBUTING.md": "project/contributing.md", "CHANGELOG.md": "project/changelog.md"}
"""Files at the top of the repository that are pages too."""

HEADINGS = {
    "It assumes": "What it assumes",
    "Messages:": "Messages",
    "Cost:": "Cost",
    "Use it": "When to use it",
    "Trap": "Traps",
    "Reference": "Source",
}
"""How a paragraph of a method's docstring begins, and its heading on the method's page."""

_CODE = re.compile(r"(`[^`]*`)")
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")
_FROM_ROOT = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the methods, the rules and the notebooks to the navigation."""
    section = _section(config.nav or [], "Methods")
    _section(section, "Rules").extend({r.name: _page_of_rule(r)} for r in _rules())
    section.extend({m.name: _page_of(m)} for m in methods().values())
    notebooks = sorted(DOCS.glob("tutorials/*.ipynb"))
    _section(config.nav or [], "Tutorials").extend(
        str(file.relative_to(DOCS)) for file in notebooks
    )
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each method and rule, and those of files at the top of the repository."""
    pages = {_page_of(method): method_page(method) for method in methods().values()}
    pages |= {_page_of_rule(rule): rule_page(rule) for rule in _rules()}
    for name, uri in TOP.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        pages[uri] = _FROM_ROOT.sub(r"](../../\1)", text)
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what markers ask for, and lead links to files of the repository to copies."""
    markdown = re.sub(r"<!-- parts: (\w+) -->", lambda m: parts_of(m[1]), markdown)
    markdown = re.sub(
        r"<!-- report: ([\w/-]+), (.+?) -->", lambda m: reported(*m.groups()), markdown
    )
    markdown = markdown.replace("<!-- settings -->", settings_table())
    markdown = markdown.replace("<!-- owned -->", owned_table())
    markdown = markdown.replace("<!-- rules -->", rules_table())
    markdown = markdown.replace("<!-- metrics -->", metrics_table())
    here = os.path.dirname(page.file.src_uri)

    def copied(match: re.Match[str]) -> str:
        target = (DOCS / here / match[2]).resolve()
        if target.parent == ROOT and target.name in TOP:
            target = DOCS / TOP[target.name]
        elif not target.is_file():
            return match[0]
        if target.is_relative_to(DOCS):
            return match[1] + os.path.relpath(target, DOCS / here)
        uri = f"repository/{target.relative_to(ROOT).as_posix()}"
        if not files.get_file_from_path(uri):
            files.append(File.generated(config, uri, abs_src_path=str(target)))
        return match[1] + os.path.relpath(uri, here or ".")

    return _LINK.sub(copied, markdown)


def method_page(method: type[Method]) -> str:
    """Return the page of a method in Markdown."""
    file = f"{method.__module__.replace('.', '/')}.py"
    text = inspect.getdoc(inspect.getmodule(method)) or ""
    lines = [f"# {method.name}", *_sections(text)]
    lines += ["## Parameters", *parameters_table([*declared(method).values()])]
    lines += [
        "## Run it",
        f"`fedbary simulate method={method.name}`; in a Flower project of your own",
        f"`from fedbary.strategies import {method.__name__}`. [The code](../../{file}).",
    ]
    return "\n\n".join(lines) + "\n"


def rule_page(rule: Part) -> str:
    """Return the page of a rule in Markdown."""
    file = f"fedbary/aggregation/{rules()[rule.name][0]}.py"
    lines = [
        f"# {rule.name}",
        *_sections(rule.text),
        "## Run it",
        f"`fedbary simulate rule={rule.name}`; in a Flower project of your own",
        f"`from fedbary.strategies import {rule.name}`. [The code](../../../{file}).",
    ]
    return "\n\n".join(lines) + "\n"


def rules_table() -> str:
    """Return the rules, each with its purpose and a link to its page."""
    rows = [(f"[{rule.name}]({rule.name.lower()}.md)", escaped(rule.purpose)) for rule in _rules()]
    return markdown_table(("rule", "what it makes of N(m_k, v_k)"), rows)


def _sections(text: str) -> list[str]:
    """Return a docstring's paragraphs in Markdown, with the headings of `HEADINGS`."""
    title, _, rest = text.partition("\n\n")
    lines = [escaped(title)]
    for paragraph in re.split(r"\n\n(?!    )", rest):
        beginning = next((words for words in HEADINGS if paragraph.startswith(words)), "")
        if beginning:
            lines.append(f"## {HEADINGS[beginning]}")
        elif lines[-1].startswith("Use it"):
            lines.append("## Notes")
        if beginning.endswith(":"):
            paragraph = paragraph.removeprefix(beginning).strip()
            paragraph = paragraph[0].upper() + paragraph[1:]
        lines.append(escaped(paragraph))
    return lines


def parts_of(setting: str) -> str:
    """Return what the files of all values of a setting say, a section each."""
    found = [part for part in parts() if part.setting == setting]
    return "\n\n".join(f"## {part.name}\n\n{escaped(part.text)}" for part in found)


def reported(name: str, heading: str) -> str:
    """Return the first section of that heading in a report, up to the next of its level."""
    _, level, rest = re.split(
        rf"^(#+) {re.escape(heading)}\n", _report(name), maxsplit=1, flags=re.M
    )
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.M)[0].strip()


@cache
def _report(name: str) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(ROOT / "findings" / name, Path(scratch) / name)
        return write_report(folder).with_suffix(".md").read_text(encoding="utf-8")


def settings_table() -> str:
    """Return every setting with its default and meaning, as simulation.yaml has them."""
    rows = (re.fullmatch(r"(\w+)=(\S+)\s*(.*)", line) for line in settings().values())
    return table(
        ("setting", "default", "meaning"), ((f"`{m[1]}`", f"`{m[2]}`", m[3]) for m in rows if m)
    )


def owned_table() -> str:
    """Return the settings that parts own, those of methods and of flwr-datasets apart."""
    whose: dict[tuple[str, ...], list[str]] = {}
    for setting, parts_of_it in owners().items():
        for name, own in parts_of_it.items():
            for p in own.values() if setting != "method" else ():
                default = NONE if p.default is None else p.default
                words = f"`{p.name}`", f"`{default}`", p.allowed, p.meaning
                whose.setdefault(words, []).append(f"`{setting}={name}`")
    rows = ((name, ", ".join(found), *words) for (name, *words), found in whose.items())
    return table(("setting", "of", "default", "allowed", "meaning"), rows)


def metrics_table() -> str:
    """Return every entry of a line of metrics.jsonl."""
    rows = ((f"`{entry.name}`", entry.when, entry.meaning) for entry in ENTRIES.values())
    return table(("entry", "which lines", "value"), rows)


def parameters_table(parameters: Sequence[Parameter]) -> Iterator[str]:
    """Yield a table of a method's parameters; a sentence where it has none."""
    rows = [
        (f"`{p.name}`", f"`{NONE if p.default is None else p.default}`", p.allowed, p.meaning)
        for p in parameters
    ]
    yield table(("parameter", "default", "allowed", "meaning"), rows) if rows else "It has none."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of docstrings' texts in Markdown."""
    return markdown_table(head, ([escaped(cell) for cell in row] for row in rows))


def escaped(text: str) -> str:
    """Return a docstring's text as Markdown: formulas and what is in backticks as they are."""
    return "\n".join(
        line if line.startswith("    ") else _plain(line)
        for line in text.replace("``", "`").split("\n")
    )


def _plain(line: str) -> str:
    pieces = _CODE.split(line)
    pieces[::2] = [
        re.sub(r"([*_\[\]])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2]
    ]
    return "".join(pieces)


def _section(entries: Sequence[Any], title: str) -> list[Any]:
    """Return the entries of the navigation below a title."""
    return next(entry[title] for entry in entries if isinstance(entry, dict) and title in entry)


def _page_of(method: type[Method]) -> str:
    return f"methods/{method.__module__.rpartition('.')[2]}.md"


def _rules() -> list[Part]:
    return [part for part in parts() if part.setting == "rule"]


def _page_of_rule(rule: Part) -> str:
    return f"methods/rules/{rule.name.lower()}.md"
