"""Hostile clients without rounds, slow and fast ones: docs/results/asynchronous.md."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedbary.report.cells import ACCURACY
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table

PROTECTIONS = {
    (False, False): "{rule}",
    (True, False): "{rule}, clipping",
    (True, True): "{rule}, clipping and mixing",
}
SERVERS = {
    "rounds": "in rounds",
    "slow": "without, hostile ones slow",
    "fast": "without, hostile ones fast",
}
"""What a server is called, by its mode or by its clock."""


def tables(results: Path) -> str:
    """Return accuracies, the mean over the last aggregates, of as many replies as a round has."""
    table = read_table(results).sort_values(["run", "round"])
    body: dict[tuple[str, str], dict[str, list[float]]] = {}
    for _, rounds in table.groupby("run", sort=False):
        first = rounds.iloc[0]
        is_async = first["mode"] == "async"
        server = str(first["speeds"]).partition("-")[0] if is_async else "rounds"
        window = round(first["clients"] / first["buffer"]) if is_async else 1
        protection = PROTECTIONS[bool(first["clipping"]), bool(first["mixing"])]
        row = (str(first["attack"]), protection.format(rule=first["rule"]))
        score = float(rounds["accuracy"].tail(window).mean())
        body.setdefault(row, {}).setdefault(server, []).append(score)
    rows = [
        [*row, *(ACCURACY.show(pd.Series(scores.get(server, []))) for server in SERVERS)]
        for row, scores in sorted(body.items(), key=lambda item: item[0][0])
    ]
    return markdown_table(["attack", "rule", *SERVERS.values()], rows)
