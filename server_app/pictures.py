"""The pictures of a run that has ended; their failure does not cost the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedbary.figures.run_pictures import learning_curves, partition_heatmap
from fedbary.figures.spared import spared
from fedbary.runs.run_folder import RunFolder
from fedbary.tasks import Scored, Task
from strategies.internals import log

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_partition(
    results: RunFolder, label_counts: Mapping[str, Sequence[int]], classes: Sequence[str]
) -> None:
    """Draw each site's examples of each class; nothing if a site does not tell them."""
    if not all(label_counts.values()):
        return
    dealt = all(name == f"partition {part}" for part, name in enumerate(label_counts))
    with spared("partition.png", lambda line: log(WARNING, "%s", line)):
        counts = np.array(list(label_counts.values()))
        sites = [] if dealt else list(label_counts)
        numbers = all(name == str(label) for label, name in enumerate(classes))
        results.draw(partition_heatmap(counts, sites, [] if numbers else classes), "partition")


def draw(
    results: RunFolder, task: Task, facts: Mapping[str, Tensor], scored: Callable[[], Scored]
) -> None:
    """Draw the curves, the result's predictions and the clients' scores; a failure is a line.

    Parameters
    ----------
    results, task, facts
        The run's.
    scored
        Returns the scores of the result.
    """

    def curves() -> Iterable[tuple[str, Figure]]:
        yield "learning-curves", learning_curves(results.rounds, task.curves)

    def of_the_model() -> Iterable[tuple[str, Figure]]:
        prediction = scored().prediction
        return () if prediction is None else task.pictures(prediction, facts)

    def of_the_clients() -> Iterable[tuple[str, Figure]]:
        return task.pictures_of_clients(results.result)

    for pictures in (curves, of_the_model, of_the_clients):
        with spared("pictures", lambda line: log(WARNING, "%s", line)):
            for name, figure in pictures():
                results.draw(figure, name)
