"""The toy picture of the rules, and who holds what."""

from __future__ import annotations

import json

import numpy as np

from fedbary.figures.run import partition_heatmap
from fedbary.figures.toy import toy_barycentres
from fedbary.report.document import Document
from fedbary.report.results import Results, grouped, written


def add_background(results: Results, document: Document) -> None:
    """Add the toy picture of the rules and who holds what."""
    document.heading("Background")
    document.figure(
        "toy",
        toy_barycentres(),
        """Two clients' posteriors over one weight, N(0, 1) and N(2, 0.25), and what each
        rule makes of them with equal weights.""",
    )
    add_partitions(results, document)


def add_partitions(results: Results, document: Document) -> None:
    """Add a picture for each data set of who holds what, of its first seed."""
    starts = results.table[results.table["round"] == 0]
    for number, (dataset, rows) in enumerate(grouped(starts, "dataset"), 1):
        row = rows.sort_values("seed").iloc[0]
        document.figure(
            f"partition-{number}",
            partition_heatmap(np.array(json.loads(row["label_counts"]))),
            f"Who holds what: {written(dataset)}, seed {row['seed']}.",
        )
