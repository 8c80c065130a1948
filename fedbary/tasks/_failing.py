"""Signs that a model has not learned, from its predictions of labelled examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from fedbary.data import deal
from fedbary.data.batches import scale_pixels
from fedbary.predictive import Forecast, Prediction
from fedbary.predictive.networks import evaluation
from fedbary.runs import schema
from fedbary.texts import shown

AS_GOOD = 0.98
"""Fraction of the score without inputs from which a model counts as no better."""

FAR = 2.0
"""Multiple of that NLL above which a loss counts as diverging."""

LOOKED_AT = 64
"""Number of inputs that show a dead layer."""

NOT_FINITE = "its predictions are not finite"


def no_better(scores: Mapping[str, float], counts: Sequence[float]) -> str:
    """Say in which scores a model is no better than one without inputs; "" if it is better in one.

    A model without inputs predicts the commonest class, whose share is p. Its NLL is the classes'
    entropy H = −Σ_c π_c log π_c, in nats. An accuracy counts as better above p + √(p (1 − p)/n),
    so that one of n examples does not decide. An NLL counts as better below 0.98 H. The result is
    "" unless both accuracy and NLL are no better.

    Parameters
    ----------
    scores
        `accuracy` and `nll` of the model.
    counts
        The examples of each class.
    """
    shares = np.array([count for count in counts if count > 0], dtype=float)
    accuracy, nll = scores["accuracy"], scores["nll"]
    if len(shares) < 2 or not np.isfinite([accuracy, nll]).all():
        return ""
    examples = shares.sum()
    shares /= examples
    entropy, commonest = float(-(shares * np.log(shares)).sum()), float(shares.max())
    chance = math.sqrt(commonest * (1 - commonest) / examples)
    if accuracy > commonest + chance + 1e-9 or nll < AS_GOOD * entropy:
        return ""
    said = f"accuracy {100 * accuracy:.2f} % is no better than the commonest class alone, "
    said += f"{100 * commonest:.2f} %"
    if accuracy > commonest:
        said += f", by more than a standard error, {100 * chance:.2f} %"
    said += f", and an NLL of {nll:.3g} is no better than {entropy:.3g} without any input"
    return said + (": it diverges" if nll > FAR * entropy else "")


def classes_failing(
    scores: Mapping[str, float], prediction: Prediction, labels: Tensor, model: nn.Module, x: Tensor
) -> dict[str, str]:
    """Return ``failing`` with what is wrong with predictions of x; nothing if all is well."""
    found = no_better(scores, torch.bincount(labels).tolist())
    if not found:
        return {}
    if layer := dead_layer(model, scale_pixels(x[:LOOKED_AT])):
        found = f"layer {layer} is dead, it passes on the same for every input; {found}"
    elif len(prediction.probs.argmax(1).unique()) == 1:
        found = f"every input gets the same answer; {found}"
    return {schema.FAILING: found}


def numbers_failing(rmse: float, targets: Tensor) -> dict[str, str]:
    """Return ``failing`` where an error is no less than that of the targets' mean."""
    spread = float(targets.double().std(correction=0))
    if len(targets.unique()) < 2 or rmse < AS_GOOD * spread:
        return {}
    return {schema.FAILING: f"RMSE {rmse:.4g} is no better than the mean's {spread:.4g}"}


FEW = 10
"""Training examples of a class, below which a model may not learn it."""

STRANGE = 10.0
"""Factor by which a column's spread at the server differs much from that at the sites."""


def with_causes(line: Mapping[str, Any], causes: Iterable[str]) -> dict[str, Any]:
    """Return a line whose fault, if it names one, begins with what in the data may cause it."""
    word = next((word for word in (schema.FAILING, schema.BEHIND) if word in line), None)
    return {**line, **({word: "; ".join([*causes, line[word]])} if word else {})}


def causes_in_labels(
    probs: Tensor, labels: Tensor, trained: Sequence[int], classes: Sequence[str]
) -> Iterator[str]:
    """Yield what is wrong with the labels: one class, few of a class, another order of the names.

    Parameters
    ----------
    probs : Tensor
        Predicted probabilities of the scored examples, (N, C).
    labels : Tensor
        Their classes, (N,).
    trained : sequence of int
        Number of training examples of each class; empty if unknown.
    classes : sequence of str
        The classes' names.
    """
    held = {classes[k]: trained[k] for k in labels.unique().tolist() if k < len(trained)}
    if sum(count > 0 for count in trained) == 1:
        yield f"all training examples are of class {shown(classes[int(np.argmax(trained))])}"
    elif few := {name: count for name, count in held.items() if count < FEW}:
        yield "few training examples: " + ", ".join(
            f"{n} of class {shown(c)}" for c, n in few.items()
        )
    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, (probs.argmax(1).cpu().numpy(), labels.cpu().numpy()), 1)
    own, renamed = counts.trace(), counts[linear_sum_assignment(counts, maximize=True)].sum()
    if own < len(labels) / len(classes) and renamed - counts.sum(0).max() > len(labels) / 4:
        yield (
            f"accuracy {100 * own / len(labels):.1f} % is below chance, and would be "
            f"{100 * renamed / len(labels):.1f} % if the classes had other names: perhaps they "
            "stand in another order in the test data"
        )


def causes_in_columns(x: Tensor, names: Sequence[str]) -> Iterator[str]:
    """Yield the columns whose spread is another at the sites than in the scored rows.

    Parameters
    ----------
    x : Tensor
        The scored rows, (N, D), standardised by the sites' means and deviations. Columns of one or
        two values are not looked at.
    names : sequence of str
        The columns' names.
    """
    for column, name in zip(x.double().T, names, strict=True):
        spread = float(column.std(correction=0))
        if len(column.unique()) > 2 and not 1 / STRANGE < spread < STRANGE:
            yield (
                f"column {name} varies {spread:.2g} times as much here as over the sites: a site "
                "may have another unit"
            )


def dead_layer(model: nn.Module, x: Tensor) -> str:
    """Return the name of the first layer after which inputs no longer differ; "" if there is none.

    If all ReLUs are 0 for every input, the next layer's input is always the same.
    """
    alike: dict[str, bool] = {}

    def look(name: str, taken: tuple[Tensor, ...]) -> None:
        alike.setdefault(name, bool((taken[0] == taken[0][:1]).all()))

    hooks = [
        module.register_forward_pre_hook(lambda _, taken, name=name: look(name, taken))
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    try:
        with torch.no_grad(), evaluation(model):
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    names = list(alike)
    return next((a for a, b in zip(names, names[1:], strict=False) if alike[b]), "")


FAR_NLL = 0.1
"""Part of a linear model's NLL by which an NLL above it counts as far behind."""

FAR_BEHIND = 0.04
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
    noise_var : float
        Mean squared error of numbers on the former.
    """

    answers: Tensor
    seen: int
    examples: int
    noise_var: float = 0.0

    def told(self) -> str:
        """Describe the model."""
        of = f"{self.seen}" if self.seen == self.examples else f"{self.seen} of {self.examples}"
        return f"a linear model, which the server fits to {of} training examples in one place"


def classes_behind(found: Rival | None, prediction: Prediction, labels: Tensor) -> dict[str, str]:
    """Return ``behind`` with the lag in accuracy, or else in NLL, if it is large."""
    if found is None:
        return {}
    labels = labels.cpu()
    theirs = (found.answers.argmax(1) == labels).double()
    ours = (prediction.probs.argmax(1).cpu() == labels).double()
    if said := far_behind("accuracy", ours, theirs, found):
        return said
    if ours.mean() >= theirs.mean() + FAR_BEHIND:
        return {}
    each = prediction.probs.cpu().double().clamp_min(LEAST)[torch.arange(len(labels)), labels]
    return far_above(-each.log(), cross_entropy(found.answers, labels, reduction="none"), found)


def numbers_behind(found: Rival | None, prediction: Forecast, targets: Tensor) -> dict[str, str]:
    """Return ``behind`` with the lag in R², if it is large."""
    var = targets.double().var(correction=0)
    if not var > 0 or found is None:
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
    error = 0.0 if classes else float((answer(features)[:, 0] - y).square().mean())
    return Rival(answers, len(rows), len(order), error)


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
    if not points >= FAR_BEHIND - 1e-12:
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
