"""Any of some labels together for each image: a task of one's own in one file.

    PYTHONPATH=examples fedbary simulate task=multilabel:MultiLabel

Labels are N×labels of 0 and 1. A prediction has the probabilities of no and yes for each label,
(N, labels, 2). Scores are the means over the labels of F1 and AUROC, and accuracy, NLL, ECE and
Brier score of the single decisions. `dataset` may be a function of yours in place of `pairs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch.nn import functional

from fedbary.data.images import Dataset
from fedbary.errors import SettingError
from fedbary.figures.sheet import GREEN, SKY
from fedbary.parts.imports import call_own_function
from fedbary.parts.parameters import Checked, InsideUnit
from fedbary.scores.metrics import Roc
from fedbary.scores.tables import left_out
from fedbary.tasks import Classes


@dataclass(frozen=True)
class OfLabels(Checked):
    """Settings of the task.

    Parameters
    ----------
    threshold
        Probability above which a label counts as found.
    """

    threshold: InsideUnit = 0.5


def of_labels(settings):
    """Yield conditions on settings."""
    bound = dict(settings).get("covariance") == "shared"
    yield "covariance", not bound, "another value: shared is a bound for one softmax"


class Labelled(Dataset):
    """Images with several labels each; they are dealt by their first label."""

    @property
    def strata(self):
        """The first label of each image, (N,); one without any goes with the first."""
        return self.y_train.argmax(1)


class MultiLabel(Classes):
    """Classification of images whose labels do not exclude each other."""

    Parameters = OfLabels
    defaults = {
        "dataset": f"{__name__}:pairs", "model": "mlp", "bayesian_layers": 1, "clients": 5,
        "rounds": 6, "lr": 0.05,
    }  # fmt: skip
    conditions = (of_labels,)
    one_class = False
    limits = {**Classes.limits, "f1": (0.0, 1.0), "auroc": (0.0, 1.0)}
    best_by = (*Classes.best_by, "f1", "auroc")
    curves = (
        ("f1", 100, "Macro F1 (%)", SKY),
        ("auroc", 100, "Macro AUROC (%)", GREEN),
        Classes.curves[1],
    )

    @property
    def held(self):
        """The images and labels that the settings name."""
        return labelled(self.settings.dataset)

    def strata(self, targets):
        """Return the label by which each image is dealt and counted."""
        return targets.argmax(1)

    def loss(self, facts):
        """Return the sum over the labels of the binary cross-entropy, a mean over images."""
        return labels_cross_entropy

    def adjusting(self, facts):
        """Return the function that makes two logits of one: their softmax is its sigmoid."""
        return lambda answer: torch.stack([torch.zeros_like(answer), answer], -1)

    def judged(self, prediction, y):
        """Return macro F1 and AUROC beside the decisions' scores."""
        yes = prediction.probs[..., 1]
        y = y.to(yes.device)
        found = (yes > self.settings.of_task(OfLabels).threshold).long()
        macro = {"f1": macro_f1(found, y), "auroc": macro_auroc(yes, y)}
        return {**super().judged(prediction, y), **macro}

    def left_out(self, prediction, y):
        """Return the labels that the AUROC leaves out."""
        curves = curves_of(prediction.probs[..., 1], y)
        return left_out(dict(zip(self.held.classes, curves, strict=True)))

    def said(self, scores):
        """Return macro F1 and AUROC and the decisions' scores."""
        line = super().said(scores)
        if math.isnan(scores["accuracy"]):
            return line
        return f"F1 {100 * scores['f1']:.2f} %  AUROC {100 * scores['auroc']:.2f} %  {line}"

    def answers(self, prediction, signature):
        """Return the labels found, each one's probability, and summed uncertainties in nats."""
        yes, names = prediction.probs[..., 1].double().cpu().numpy(), np.array(signature.classes)
        found = [", ".join(names[row]) for row in yes > self.settings.of_task(OfLabels).threshold]
        return {
            "labels": np.array(found, dtype=object),
            **{f"p({name})": yes[:, k] for k, name in enumerate(signature.classes)},
            "total uncertainty": prediction.entropy.double().sum(1).cpu().numpy(),
            "epistemic uncertainty": prediction.epistemic.double().sum(1).cpu().numpy(),
        }


@lru_cache(maxsize=4)
def labelled(dataset):
    """Return the images and labels of a function of that name, the same object each time."""
    arrays = call_own_function("dataset", dataset)
    parts = {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays if name[1] == "_"}
    for end in ("train", "test"):
        x, y = parts[f"x_{end}"], parts[f"y_{end}"].long()
        if y.shape != (len(x), len(arrays["classes"])) or not set(y.unique().tolist()) <= {0, 1}:
            raise SettingError("dataset", f"labels {tuple(y.shape)}", "N×classes of 0 and 1")
        parts |= {f"x_{end}": x if x.dtype == torch.uint8 else x.float(), f"y_{end}": y}
    return Labelled(dataset, **parts, classes=tuple(arrays["classes"]))


def labels_cross_entropy(logits, labels):
    """Return −Σ_l [y_l log σ(z_l) + (1 − y_l) log σ(−z_l)], a mean over the batch, in nats."""
    found = functional.binary_cross_entropy_with_logits(
        logits, labels.to(logits.dtype), reduction="sum"
    )
    return found / len(labels)


def macro_f1(predicted, labels):
    """Return the mean over the labels of F1 = 2 TP / (2 TP + FP + FN), (N, labels) of 0 and 1.

    A label that is neither predicted nor true for any example is left out; NaN if all are.
    """
    both = (predicted * labels).sum(0).double()
    each = predicted.sum(0) + labels.sum(0)
    return float((2 * both / each)[each > 0].mean())


def macro_auroc(probs, labels):
    """Return the mean over the labels of the AUROC; a label that all or none have is left out."""
    return float(torch.tensor([curve.auroc for curve in curves_of(probs, labels)]).nanmean())


def curves_of(probs, labels):
    """Return the ROC curve of each label."""
    return [Roc.of(p, y == 1) for p, y in zip(probs.T, labels.T, strict=True)]


def pairs():
    """Return scikit-learn's digits in pairs, 8×16 pixels; the labels are which digits are in sight.

    900 pictures for training and 300 for testing, of different digits.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    images, held, rng = (x / 16).reshape(-1, 8, 8), {}, np.random.default_rng(0)
    for end, first, last, count in (("train", 0, 1200, 900), ("test", 1200, len(y), 300)):
        left, right = rng.integers(first, last, (2, count))
        held[f"x_{end}"] = np.concatenate([images[left], images[right]], axis=2)[:, None]
        labels = np.zeros((count, 10), np.int64)
        labels[np.arange(count), y[left]] = labels[np.arange(count), y[right]] = 1
        held[f"y_{end}"] = labels
    return {**held, "classes": [str(digit) for digit in range(10)]}
