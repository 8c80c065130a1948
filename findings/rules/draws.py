"""Are fifty draws enough? The posteriors that a sweep's runs left, scored with more of them.

It writes `draws.csv` beside a sweep's results, a row for a number of draws and a run whose folder
is still there, and prints the table that `findings.rules.page` makes of it.

    python -m findings.rules.draws findings/rules/cifar10 data_dir=DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.report.cells import ACCURACY, NLL
from fedbary.runs.whole import write_whole
from fedbary.settings.config import parse_overrides
from fedbary.study.table import result_rows
from fedbary.trained.loading import load
from fedbary.trained.run import Trained
from findings._scores import scores
from findings.rules.page import DRAWN, DRAWS, draws_table, read

NUMBERS = (50, 100)
METRICS = (ACCURACY, NLL, *DRAWN)


def scored(trained: Trained, draws: int, **place: Any) -> Mapping[str, float]:
    """Return the scores of a run's model with so many draws from its posterior.

    `place` is where the data are now, as the setting `data_dir`, if not where they were.
    """
    settings = trained.settings.model_copy(update={"samples": draws, **place})
    every = scores(replace(trained, settings=settings), trained.posterior)
    return {metric.column: every[metric.column] for metric in METRICS}


def rows_of(results: Path, **place: Any) -> Iterator[dict[str, Any]]:
    """Yield a row for every run that is still there, and number of draws."""
    runs = result_rows(read(results))
    for _, run in runs.sort_values(["seed", "arm"]).iterrows():
        folder = results / "runs" / run["run"]
        if not folder.is_dir():
            continue
        trained = load(folder)
        for draws in NUMBERS:
            about = {**run[["run", "arm", "seed"]], "draws": draws}
            yield {**about, **scored(trained, draws, **place)}


def main() -> None:
    """Write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="the folder of a sweep, with its runs")
    parser.add_argument("place", nargs="*", metavar="data_dir=DIR", help="where the data are now")
    words = parser.parse_args()
    found = pd.DataFrame(rows_of(words.results, **parse_overrides(words.place)))
    text = found.to_csv(index=False, float_format="%.6g")
    write_whole(words.results / DRAWS, text.encode())
    print(draws_table(found))


if __name__ == "__main__":
    main()
