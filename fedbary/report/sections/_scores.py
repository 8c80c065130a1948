"""The sections of a task that has none of its own: the runs, their scores, the partition."""

from __future__ import annotations

import json

from fedbary.report.background import add_partitions
from fedbary.report.cautions import add_cautions
from fedbary.report.cells import Metric
from fedbary.report.document import Document
from fedbary.report.pairs import add_pairs
from fedbary.report.results import Results, scored_after
from fedbary.report.run_list import add_runs
from fedbary.report.scores_table import add_scores
from fedbary.report.variances import add_variances
from fedbary.study.grid import NAMING
from fedbary.tasks import Task


class Scores:
    """Sections that show the scores whose course a task draws.

    Parameters
    ----------
    task : type of Task
        The task.
    """

    def __init__(self, task: type[Task]) -> None:
        self._metrics = tuple(
            Metric(name, label, scale, 2 if scale == 100 else 3)
            for name, scale, label, _ in task.curves
        )
        self.REQUIRED = (*NAMING, *(metric.column for metric in self._metrics), "seconds")

    def write(self, results: Results, document: Document) -> None:
        """Add the sections to a document."""
        document.text(
            """{runs} runs. All numbers are of the global model {after}, as mean ±
            standard deviation over {repeats}.""",
            runs=len(results.last),
            after=scored_after(results.last),
            repeats=results.repeats,
        )
        add_cautions(results, document)
        document.heading("Scores")
        add_scores(results, document, self._metrics, best=False)
        add_pairs(results, document, self._metrics)
        add_variances(results, document)
        starts = results.table.loc[results.table["round"] == 0, "label_counts"]
        if any(any(json.loads(counts)) for counts in starts):
            document.heading("Data")
            add_partitions(results, document)
        add_runs(document, results.last)
