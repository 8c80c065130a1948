"""Lag of a model behind a linear one of pixels or columns, which sees all data in one place.

The server fits the linear model to the training examples that it can read: in a simulation those of
all clients, else its own. It uses scikit-learn's logistic regression for classes. For numbers it
uses scikit-learn's ridge regression, whose penalty leave-one-out chooses. No site is asked. Both
models are scored on the same examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Generator, Tensor
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from fedbary.data import deal
from fedbary.predictive import Forecast, Prediction
from fedbary.runs import schema

FAR_NLL = 0.1
"""Part of a linear model's NLL by which an NLL above it counts as far behind."""

FAR = 0.04
"""Difference in accuracy or R² that counts as far behind: four points.

The best linear model may be one point ahead of the fitted one. So a lag of five points behind the
best is always noticed."""

PRODUCTS = 4_000_000_000
"""Products of the fit, some 1.5 s of one core; with more examples a part is drawn."""

SIDE = 32
"""Pixels of a side that the linear model sees; larger images are averaged to so many."""

LEAST = 1e-8
"""The least probability that is scored, as in `fedbary.scores.metrics`."""

AT_ONCE = 1000
"""Examples at a time."""

TOLERANCE = 1e-3
"""Gradient at which logistic regression ends: a third of the steps of scikit-learn's 1e-4."""

PENALTIES = torch.logspace(-6, 1, 8, dtype=torch.float64)
"""Ridge penalties, in the unit of the inputs' sum of squares."""


@dataclass(frozen=True, eq=False)
class Rival:
    """Answers of a linear model on the scored examples, and the examples that it has seen.

    Attributes
    ----------
    answers : Tensor
        Scores of the classes (N, C), or numbers (N, 1).
    seen, examples : int
        Number of training examples that it is fitted to, and of all.
    """

    answers: Tensor
    seen: int
    examples: int

    def told(self) -> str:
        """Describe the model."""
        of = f"{self.seen}" if self.seen == self.examples else f"{self.seen} of {self.examples}"
        return f"a linear model, which the server fits to {of} training examples in one place"


def classes_behind(
    held: deal.Dealable, dealt: deal.Deal, prediction: Prediction, labels: Tensor
) -> dict[str, str]:
    """Return ``behind`` with the lag in accuracy, or else in NLL, if it is large."""
    if (found := rival(held, dealt, classes=prediction.probs.shape[1])) is None:
        return {}
    labels = labels.cpu()
    theirs = (found.answers.argmax(1) == labels).double()
    ours = (prediction.probs.argmax(1).cpu() == labels).double()
    if said := far_behind("accuracy", ours, theirs, found):
        return said
    if ours.mean() >= theirs.mean() + FAR:
        return {}
    each = prediction.probs.cpu().double().clamp_min(LEAST)[torch.arange(len(labels)), labels]
    return far_above(-each.log(), cross_entropy(found.answers, labels, reduction="none"), found)


def numbers_behind(
    held: deal.Dealable, dealt: deal.Deal, prediction: Forecast, targets: Tensor
) -> dict[str, str]:
    """Return ``behind`` with the lag in R², if it is large."""
    var = targets.double().var(correction=0)
    if not var > 0 or (found := rival(held, dealt)) is None:
        return {}
    theirs, ours = (
        1 - (answers.double() - targets).square() / var
        for answers in (found.answers[:, 0], prediction.mean)
    )
    return far_behind("R²", ours, theirs, found)


@lru_cache(maxsize=4)
def rival(held: deal.Dealable, dealt: deal.Deal, classes: int = 0) -> Rival | None:
    """Return the linear model of a deal, for classes or numbers; None if all labels are equal."""
    x, y = deal.training_data(held, dealt)
    if len(y.unique()) < 2:
        return None
    width = _seen(x[:1]).shape[1]
    most = max(math.isqrt(PRODUCTS // width), PRODUCTS // width**2)
    order = torch.randperm(len(y), generator=Generator().manual_seed(dealt.derived("linear")))
    rows = order[:most].sort().values
    features, y = torch.cat([_seen(part) for part in x[rows].split(AT_ONCE)]), y[rows]
    mean = features.nanmean(0).nan_to_num()
    features = features.where(~features.isnan(), mean)
    scale = features.std(0, correction=0) if x.ndim == 2 else features.abs().max()
    scale = torch.where(scale > 0, scale, 1.0)
    features = (features - mean) / scale
    answer = _logistic(features, y, classes) if classes else _ridge(features, y)

    def answered(part: Tensor) -> Tensor:
        seen = _seen(part)
        return answer((seen.where(~seen.isnan(), mean) - mean) / scale)

    tested = deal.evaluation_data(held, dealt)[0]
    answers = torch.cat([answered(part) for part in tested.split(AT_ONCE)])
    return Rival(answers, len(rows), len(order))


def _logistic(x: Tensor, labels: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
    """Fit classes; return the function of inputs (n, d) that gives log-probabilities (n, C)."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(tol=TOLERANCE, max_iter=1000).fit(x.numpy(), labels.numpy())

    def answer(x: Tensor) -> Tensor:
        probs = torch.zeros(len(x), classes, dtype=torch.float64)
        probs[:, model.classes_] = torch.from_numpy(model.predict_proba(x.numpy()))
        return probs.clamp_min(LEAST).log()

    return answer


def _ridge(x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """Fit numbers; return the function of inputs (n, d) that gives numbers (n, 1)."""
    from sklearn.linear_model import RidgeCV

    model = RidgeCV(PENALTIES * (float(x.square().sum()) or 1.0)).fit(x.numpy(), y.numpy())
    return lambda x: torch.from_numpy(model.predict(x.numpy()))[:, None]


def far_behind(score: str, ours: Tensor, theirs: Tensor, found: Rival) -> dict[str, str]:
    """Return ``behind``, with its standard error, if the mean of a score (N,) is far below."""
    gap = theirs - ours
    points, error = float(gap.mean()), float(gap.std(correction=0)) / math.sqrt(len(gap))
    if not points >= FAR - 1e-12:
        return {}
    said = f"its {score} of {100 * ours.mean():.1f} % is {100 * points:.1f} points (standard error "
    said += f"{100 * error:.1f}) below the {100 * theirs.mean():.1f} % of {found.told()}"
    return {schema.BEHIND: f"{said}; {len(gap)} examples score both"}


def far_above(ours: Tensor, theirs: Tensor, found: Rival) -> dict[str, str]:
    """Return ``behind``, with its standard error, if the mean of an NLL (N,) is far above."""
    gap = ours - theirs
    nats, error = float(gap.mean()), float(gap.std(correction=0)) / math.sqrt(len(gap))
    if not nats >= max(FAR_NLL * float(theirs.mean()), error):
        return {}
    said = f"its NLL of {ours.mean():.3f} nats is {nats:.3f} (standard error {error:.3f}) above "
    said += f"the {theirs.mean():.3f} of {found.told()}; {len(gap)} examples score both"
    return {schema.BEHIND: said}


def _seen(x: Tensor) -> Tensor:
    """Return the linear model's inputs from images (N, C, H, W) or rows (N, d), in float64."""
    if x.ndim == 4 and max(x.shape[2:]) > SIDE:
        x = adaptive_avg_pool2d(x.float(), (min(x.shape[2], SIDE), min(x.shape[3], SIDE)))
    return x.flatten(1).double()
