"""Which of two values of a score is the better one: the one place that says so."""

from __future__ import annotations

import re

HIGHER = frozenset({"accuracy", "auroc", "f1", "iou", "rejection", "sensitivity"})
"""Words of names of scores of which the higher value is better."""

LOWER = frozenset(
    {"brier", "bytes", "crps", "ece", "kl", "mse", "nll", "rmse", "seconds", "size", "tv"}
)
"""Words of names of scores, errors and costs of which the lower value is better."""


def lower_is_better(name: str) -> bool | None:
    """Return whether the lower value of a score is better; None if neither is, or none is known.

    Parameters
    ----------
    name : str
        Name of the score, with its groups before it: ``nll``, ``ood.auroc_entropy``. The last word
        in `HIGHER` or `LOWER` counts. A coverage is best near its level, so neither way is better.
    """
    known = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word in HIGHER | LOWER]
    return known[-1] in LOWER if known else None
