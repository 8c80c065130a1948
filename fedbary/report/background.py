"""Pictures of the partition."""

from __future__ import annotations

import json

import numpy as np

from fedbary.figures.run_pictures import partition_heatmap
from fedbary.report.document import Document
from fedbary.report.results import Results, grouped


def add_partitions(results: Results, document: Document) -> None:
    """Add a picture of each condition's partition, for its first seed."""
    starts = results.table[results.table["round"] == 0]
    starts = starts.merge(results.last[["run", "condition"]])
    for number, (condition, rows) in enumerate(grouped(starts, "condition"), 1):
        row = rows.sort_values("seed").iloc[0]
        document.figure(
            f"partition-{number}",
            partition_heatmap(np.array(json.loads(row["label_counts"]))),
            f"Who holds what: {condition}, seed {row['seed']}.",
        )
