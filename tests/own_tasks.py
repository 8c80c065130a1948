"""Tasks of one's own, as `task=own_tasks:…` names them."""

from dataclasses import dataclass

from torch.nn.functional import one_hot

from fedbary.figures.sheet import RED
from fedbary.parts.parameters import Positive
from fedbary.tasks import Task
from fedbary.tasks.tables import OfLabelledRows, Tables


@dataclass(frozen=True)
class OfGrades(OfLabelledRows):
    """Settings of grades.

    Parameters
    ----------
    power
        Power of the distance between two cumulative shares.
    """

    power: Positive = 2.0


class Grades(Tables):
    """Rows whose classes are ordered, scored by Σ_c |P(y ≤ c) − 1[y ≤ c]|^power too."""

    Parameters = OfGrades
    defaults = {"rounds": 2, "model": "linear"}
    limits = {**Tables.limits, "rps": (0.0, 1.0)}
    curves = (("rps", 1, "Ranked probability score", RED), *Tables.curves)

    def judged(self, prediction, y):
        """Return the scores of tables, and the ranked probability score."""
        probs = prediction.probs
        apart = (probs - one_hot(y, probs.shape[1])).cumsum(1)[:, :-1].abs()
        score = float((apart**self.settings.power).mean())
        return {**super().judged(prediction, y), "rps": score}


class Unfinished(Task):
    """A task that lacks its methods."""


def function():
    """Return no task."""
