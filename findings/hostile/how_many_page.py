"""More hostile clients than expected: the table of docs/howto/hostile.md."""

from __future__ import annotations

from pathlib import Path

from fedbary.report.cells import ACCURACY
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows


def tables(results: Path) -> str:
    """Return the accuracy of each defence at each part of hostile clients that it expects."""
    rows = result_rows(read_table(results))
    name = ("`rule=" + rows["rule"] + "`").mask(rows["mixing"], "`mixing=true`")
    found = rows.assign(name=name).pivot(index="name", columns="trim_fraction", values="accuracy")
    body = [
        [each, *(f"{ACCURACY.scale * value:.1f}" for value in found.loc[each])]
        for each in name.unique()
    ]
    head = ["accuracy %", *(f"`trim_fraction={expected:g}`" for expected in found)]
    return markdown_table(head, body)
