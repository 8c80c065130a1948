"""Are fifty draws enough? The posteriors that a sweep's runs left, scored with more of them.

It writes `draws.csv` beside a sweep's results, a row for a number of draws and a run whose folder
is still there, and prints the table that `findings.rules.page` makes of it.

    python -m findings.rules.draws findings/rules/cifar10 data_dir=DIR
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.gaussian import Posterior
from fedbary.report.results import ACCURACY, NLL
from fedbary.settings.config import parse_overrides
from fedbary.study.table import result_rows
from fedbary.tasks import Outcome
from fedbary.trained.loading import load
from fedbary.trained.run import Trained
from findings.rules.page import DRAWN, DRAWS, draws_table, read

NUMBERS = (50, 100)
METRICS = (ACCURACY, NLL, *DRAWN)


def scores(trained: Trained, posterior: Posterior) -> Mapping[str, float]:
    """Return every score of a posterior that the run's network holds, with the run's draws."""
    by = replace(trained.predictive, posterior=posterior, members={})
    outcome = Outcome(trained.settings.rounds, trained.network, by, trained.line, [])
    found = trained.task.scores(outcome, trained.facts)
    return {**found.scores, **found.line}


def rows_of(results: Path, **place: Any) -> Iterator[dict[str, Any]]:
    """Yield a row for every run that is still there, and number of draws.

    `place` is where the data are now, as the setting `data_dir`, if not where they were.
    """
    runs = result_rows(read(results))
    for _, run in runs.sort_values(["seed", "arm"]).iterrows():
        if not (folder := results / "runs" / run["run"]).is_dir():
            continue
        trained = load(folder)
        for draws in NUMBERS:
            settings = trained.settings.model_copy(update={"samples": draws, **place})
            every = scores(replace(trained, settings=settings), trained.posterior)
            found = {metric.column: every[metric.column] for metric in METRICS}
            yield {**run[["run", "arm", "seed"]], "draws": draws, **found}


def main(results: str, *words: str) -> None:
    """Write and print the table."""
    found = pd.DataFrame(rows_of(Path(results), **parse_overrides(words)))
    found.to_csv(Path(results) / DRAWS, index=False, float_format="%.6g")
    print(draws_table(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
