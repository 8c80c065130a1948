"""Signs that a model has not learned, from its predictions of labelled examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedbary.data.batches import inputs
from fedbary.predictive import Prediction
from fedbary.predictive.networks import evaluation
from fedbary.runs import schema

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
    if layer := dead_layer(model, inputs(x[:LOOKED_AT])):
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
