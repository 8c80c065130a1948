"""Columns of a report's table: their names, their format, the best of their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedbary.report.markup import bold, underlined
from fedbary.runs.direction import lower_is_better


class Difference(Protocol):
    """A mean difference with its interval: a `Paired`, or a row of `differences`."""

    @property
    def mean(self) -> float: ...  # noqa: D102
    @property
    def low(self) -> float: ...  # noqa: D102
    @property
    def high(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class Metric:
    """A column of the table, and how it is shown."""

    column: str
    label: str
    scale: float = 1.0
    decimals: int = 3

    @property
    def lower_is_better(self) -> bool | None:
        """True if the lower value is better; None if there is no better one."""
        return lower_is_better(self.column)

    def show(self, values: Iterable[float]) -> str:
        """Return mean ± standard deviation of values in the table's unit.

        If a value is missing, there is no mean: the remaining values may be the better ones.
        """
        found = np.array(list(values), dtype=float) * self.scale
        if (lost := int(np.isnan(found).sum())) > 0:
            return "–" if lost == len(found) else f"– ({lost} of {len(found)} missing)"
        text = f"{found.mean():.{self.decimals}f}"
        return f"{text} ± {found.std(ddof=1):.{self.decimals}f}" if len(found) > 1 else text

    def difference(self, found: Difference) -> str:
        """Return a mean difference, in this metric's unit, with its 95 % interval if it has one."""
        numbers = (found.mean, found.low, found.high)
        mean, low, high = (f"{number:+.{self.decimals}f}" for number in numbers)
        return mean if math.isnan(found.low) else f"{mean} [{low}, {high}]"


ACCURACY = Metric("accuracy", "Accuracy %", 100, 2)
ECE_15 = Metric("ece_15", "ECE %, 15 bins", 100, 2)
ECE_100 = Metric("ece_100", "ECE %, 100 bins", 100, 2)
NLL = Metric("nll", "NLL")
MAIN = (ACCURACY, ECE_15, ECE_100, NLL)
FAIRNESS = (
    Metric("local_models.weighted_accuracy", "Clients' weighted accuracy, %", 100, 2),
    Metric("local_models.worst10_accuracy", "Worst tenth of the clients, %", 100, 2),
)
UNCERTAINTY = (
    Metric("uncertainty.entropy", "Total, nats"),
    Metric("uncertainty.aleatoric", "Aleatoric, nats"),
    Metric("uncertainty.epistemic", "Epistemic, nats", decimals=4),
)
DETECTION = (
    Metric("ood.auroc_entropy", "AUROC % of entropy", 100, 2),
    Metric("ood.auroc_epistemic", "AUROC % of mutual information", 100, 2),
)
MAHALANOBIS = Metric("ood.auroc_mahalanobis", "AUROC % of relative Mahalanobis", 100, 2)
REJECTED = ("0.1", "0.2", "0.3", "0.5")


def marked(
    metric: Metric, means: Sequence[float], shown: Sequence[str], groups: Sequence[object]
) -> list[str]:
    """Embolden the best cell of a column and underline the best of each group; ties share.

    A single cell, and a column without a better direction, are not marked.
    """
    if metric.lower_is_better is None or len(means) < 2:
        return list(shown)
    sign = 1 if metric.lower_is_better else -1
    rounded = np.array([sign * round(mean, metric.decimals) for mean in means])
    cells = []
    for value, text, group in zip(rounded, shown, groups, strict=True):
        rivals = rounded[[other == group for other in groups]]
        if len(rivals) > 1 and value == np.nanmin(rivals):
            text = underlined(text)
        cells.append(bold(text) if value == np.nanmin(rounded) else text)
    return cells
