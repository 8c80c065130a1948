"""Every table of the documentation's pages of results, made from the runs that lie here.

python -m findings            print them, page by page, and draw the pictures
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from findings._page import PICTURE

ROOT = Path(__file__).resolve().parents[1]
COMMAND = re.compile(r"python -m (findings\.\w+\.page) (findings/[\w/-]+)\n")


def commands() -> Iterator[tuple[Path, str, Path]]:
    """Yield each page with the module of its tables and the folder of their runs."""
    for page in sorted((ROOT / "docs/results").glob("*.md")):
        for module, folder in COMMAND.findall(page.read_text(encoding="utf-8")):
            yield page, module, ROOT / folder


if __name__ == "__main__":
    for page, module, folder in commands():
        made = import_module(module)
        print(f"## {page.name}, {folder.relative_to(ROOT)}\n\n{made.tables(folder)}\n")
        made.picture(folder).savefig(folder / PICTURE)
