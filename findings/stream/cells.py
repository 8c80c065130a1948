"""Streams of five tasks: settings are chosen on validation data, and scored on other seeds.

    python -m findings.stream.cells DATA FOLDER

DATA holds the `features64.npz` of `findings.features`. FOLDER gets
`tried.csv.xz`, the NLL on validation data of every setting that was tried, and `cells.csv.xz`, the
scores on the test after each task. What is there is not measured again.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from findings.heads import add
from findings.stream.chain import chain
from findings.stream.sides import BUDGETS, SIDES, USUAL
from findings.stream.streams import STREAMS, stream

TRIAL, FURTHER, SEEDS = (100,), (101, 102), (0, 1, 2, 3, 4)
"""The seed on which all settings of a side are tried, those of the best, and those of the test."""


def nll(name: str, method: str, settings: Mapping[str, Any], seed: int, data: Path) -> float:
    """Return the NLL after the last task, on all tasks' validation images; inf if it is lost."""
    by = SIDES[method], settings, stream(name, seed, data), seed, "valid", True
    try:
        *_, (_, found) = chain(*by)
    except ValueError as error:
        print(name, method, json.dumps(settings), error, flush=True)
        return math.inf
    return found["nll"] if math.isfinite(found["nll"]) else math.inf


def chosen(tried: pd.DataFrame, name: str, method: str, most: int) -> list[str]:
    """Return a side's settings of the least mean NLL, of those tried on the most seeds."""
    own = tried[(tried["stream"] == name) & (tried["method"] == method)]
    by = own.groupby("settings", sort=False)["nll"].agg(["count", "mean"])
    return [*by.sort_values(["count", "mean"], ascending=[False, True], kind="stable").index[:most]]


def measure(name: str, method: str, data: Path, folder: Path) -> None:
    """Choose the settings of a side on a stream, and score them."""
    table = folder / "tried.csv.xz"

    def try_(several: list[str], seeds: tuple[int, ...]) -> None:
        def rows() -> Iterator[dict[str, Any]]:
            for words in several:
                for seed in seeds:
                    found = nll(name, method, json.loads(words), seed, data)
                    place = {"stream": name, "method": method, "settings": words}
                    yield {**place, "seed": seed, "nll": found}

        add(table, f"{name}, {method}, {seeds}", rows)

    most, best = BUDGETS.get(name.split()[0], USUAL)
    every = [json.dumps(settings) for settings in SIDES[method].settings(method, most)]
    if len(every) > 1:
        try_(every, TRIAL)
        try_(chosen(pd.read_csv(table), name, method, best), FURTHER)
        every = chosen(pd.read_csv(table), name, method, 1)

    def scored() -> Iterator[dict[str, Any]]:
        for seed in SEEDS:
            by = SIDES[method], json.loads(every[0]), stream(name, seed, data), seed, "test"
            for task, found in chain(*by):
                yield {"stream": name, "method": method, "seed": seed, "task": task, **found}

    add(folder / "cells.csv.xz", f"{name}, {method}", scored)


def main(data: Path, folder: Path) -> None:
    """Measure what is not there yet."""
    for name in STREAMS:
        for method, side in SIDES.items():
            if name.split()[1] in side.changes:
                measure(name, method, data, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
