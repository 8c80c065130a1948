"""The best settings in short: the table of the README.

python -m findings.best.readme_page findings/best
"""

from __future__ import annotations

from pathlib import Path

from fedbary.study.table import result_rows
from findings import _page
from findings.best.page import headline, read


def tables(results: Path) -> str:
    """Return the table in Markdown."""
    return headline(result_rows(read(results)))


if __name__ == "__main__":
    _page.run(__doc__, tables)
