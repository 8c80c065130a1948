"""Tables whose classes are ordered: a task of one's own in one file.

    PYTHONPATH=examples fedbary simulate task=ordered:Ordered dataset=mine.csv target=grade

A near miss is better than a far one, which the ranked probability score tells (Epstein 1969).
"""

from __future__ import annotations

from torch.nn.functional import one_hot

from fedbary.figures.sheet import RED
from fedbary.tasks.tables import Tables


class Ordered(Tables):
    """Classification of tables, scored by the ranked probability score too."""

    limits = {**Tables.limits, "rps": (0.0, 1.0)}
    curves = (("rps", 1, "Ranked probability score", RED), *Tables.curves)

    def judged(self, prediction, y):
        """Return the scores of tables, and Σ_c (P(y ≤ c) − 1[y ≤ c])² / (K − 1)."""
        probs = prediction.probs
        apart = (probs - one_hot(y, probs.shape[1])).cumsum(1)[:, :-1]
        return {**super().judged(prediction, y), "rps": float(apart.square().mean())}
