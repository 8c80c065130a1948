"""Columns of a report's table: their names, their format, the best of their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedbary.report.markup import bold
from fedbary.runs.direction import lower_is_better


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

    def difference(self, found: Any) -> str:
        """Return a mean difference, in this metric's unit, with its 95 % interval if it has one.

        `found` is a `Paired`, or a row of `differences`.
        """
        numbers = (found.mean, found.low, found.high)
        mean, low, high = (f"{number:+.{self.decimals}f}" for number in numbers)
        return mean if math.isnan(found.low) else f"{mean} [{low}, {high}]"


ACCURACY = Metric("accuracy", "Accuracy %", 100, 2)
ECE_15 = Metric("ece_15", "ECE %, 15 bins", 100, 2)
ECE_100 = Metric("ece_100", "ECE %, 100 bins", 100, 2)
NLL = Metric("nll", "NLL")
BRIER = Metric("brier", "Brier")
MAIN = (ACCURACY, ECE_15, ECE_100, NLL)
DETECTION = (
    Metric("ood.auroc_entropy", "AUROC % of entropy", 100, 2),
    Metric("ood.auroc_epistemic", "AUROC % of mutual information", 100, 2),
)

SHOWN = {
    "classification": (
        ACCURACY, NLL, ECE_15, ECE_100, BRIER, replace(DETECTION[0], label="OOD AUROC %")
    ),
    "tables": (
        ACCURACY, NLL, Metric("auroc", "AUROC %", 100, 2), BRIER,
        Metric("sensitivity", "Sensitivity %", 100, 2),
    ),
    "regression": (
        NLL, Metric("rmse", "RMSE", decimals=2), Metric("crps", "CRPS", decimals=2),
        Metric("sharpness", "sharpness", decimals=2),
        *(Metric(f"coverage_{level}", f"in {level} %", 100, 0) for level in (50, 90, 95)),
    ),
}  # fmt: skip
"""Scores of a task in a report; those of other tasks are the ones whose courses they draw."""

CLIENTS = (
    Metric("personal.held_out.personal.weighted_accuracy", "own models, own data %", 100, 2),
    Metric("personal.held_out.personal.worst10_accuracy", "… worst tenth %", 100, 2),
    Metric("personal.held_out.global.weighted_accuracy", "global, own data %", 100, 2),
    Metric("local_models.weighted_accuracy", "clients' models, weighted %", 100, 2),
    Metric("local_models.worst10_accuracy", "their worst tenth %", 100, 2),
)
"""Scores of the clients' models: own ones that they keep, and those that leave for the server."""

UNCERTAINTY = (
    Metric("uncertainty.entropy", "Total, nats"),
    Metric("uncertainty.aleatoric", "Aleatoric, nats"),
    Metric("uncertainty.epistemic", "Epistemic, nats", decimals=4),
    Metric("by_chance.ece_15", "ECE % by chance, 15 bins", 100, 2),
    *DETECTION,
    Metric("ood.auroc_mahalanobis", "AUROC % of relative Mahalanobis", 100, 2),
    *(Metric(f"rejection.0.{k}", f"Accuracy %, {k}0 % rejected", 100, 2) for k in (1, 2, 3, 5)),
)


def marked(metric: Metric, means: Sequence[float], shown: Sequence[str]) -> list[str]:
    """Embolden the best cell of a column; ties share.

    A single cell, and a column without a better direction, are not marked.
    """
    if metric.lower_is_better is None or len(means) < 2:
        return list(shown)
    sign = 1 if metric.lower_is_better else -1
    rounded = np.array([sign * round(mean, metric.decimals) for mean in means])
    best = np.nanmin(rounded)
    return [bold(t) if value == best else t for value, t in zip(rounded, shown, strict=True)]
