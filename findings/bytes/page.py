"""What fewer bytes cost: the tables of docs/howto/bytes.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.report.cells import ACCURACY, ECE_15, NLL
from fedbary.report.differences import p_value
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows
from findings._pairs import detectable, of_pair

PLAIN = "none"
PACKED = ("log_var", "all")
SHOWN = (ACCURACY, NLL)


def read(results: Path) -> pd.DataFrame:
    """Return the result of every run, `side` being what is packed, or the rule FedAvg."""
    rows = result_rows(read_table(results))
    return rows.assign(side=rows["compress"].where(rows["rule"] == "RKLB", rows["rule"]))


def tables(results: Path) -> str:
    """Return the table in Markdown."""
    rows = read(results)
    of_fedavg = rows[rows["side"] == "FedAvg"]
    body = []
    for packed in (PLAIN, *PACKED):
        runs = rows[rows["side"] == packed]
        times = [runs[way].mean() / of_fedavg[way].mean() for way in ("bytes.up", "bytes.down")]
        cells = [f"`{packed}`", *(f"{each:.2f}" for each in times)]
        cells += [metric.show(runs[metric.column]) for metric in SHOWN]
        found = of_pair(rows, (packed, PLAIN), NLL)
        tested = [NLL.difference(found), p_value(found.t_test)]
        body.append(cells + (tested if packed != PLAIN else ["", ""]))
    head = ["`compress=`", "bytes up", "bytes down", *(metric.label for metric in SHOWN)]
    return markdown_table([*head, "NLL less that of `none` [95 %]", "p, t-test"], body)


def facts(results: Path) -> Iterator[float]:
    """Yield what the page says beside the table: the difference in ECE that is the nearest to one.

    Its mean, interval and p; before it the least differences in NLL that are seen.
    """
    rows = read(results)
    yield from (detectable(of_pair(rows, (packed, PLAIN), NLL)) for packed in PACKED)
    found = of_pair(rows, ("log_var", PLAIN), ECE_15)
    yield from (found.mean, found.low, found.high, found.t_test)
