"""Entries of a round's line on classes: scores and their limits, uncertainty, fairness."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbary.figures.sheet import BLUE, GREEN, RED
from fedbary.predictive import Prediction
from fedbary.predictive.projection import STRENGTHS
from fedbary.runs import schema
from fedbary.scores.metrics import (
    NLL_RANGE,
    accuracy_after_rejection,
    ece_by_chance,
    evaluate,
    fairness,
)
from fedbary.scores.temperature import KNOWN as KNOWN_AT_TEMPERATURES
from fedbary.scores.temperature import TEMPERATURES, fitted_temperature, least_nll
from fedbary.tasks.shared.values import ClientMetrics, Outcome

ECE_BINS = (15, 100)
"""Numbers of bins of most papers and of BA-BFL; both are recorded beside `ece_bins`."""

SCORES = {"accuracy": (0.0, 1.0), "nll": NLL_RANGE, "ece": (0.0, 1.0), "brier": (0.0, 2.0)}
"""The scores of a model's probabilities, each with its least and its largest value."""

OWN = {
    "global": "",
    "personal": "personal-",
    **{f"projected-{called}": f"projected-{called}-" for called in STRENGTHS},
}
"""Prefixes of a client's evaluation metrics, by the scored model."""

DATA = {"held_out": "", "shares": "share-"}
"""Their second parts, by the data: the client's holdout, or the test set by its label shares."""

REJECTED = tuple(tenth / 10 for tenth in range(10))
"""Fractions of the test set that are rejected, most uncertain first."""

ACCURACY = ("accuracy", 100, "Accuracy (%)", BLUE)
NLL = ("nll", 1, "Negative log-likelihood (nats)", RED)
ECE = ("ece", 100, "Expected calibration error (%)", GREEN)


def known_temperature(outcome: Outcome) -> float | None:
    """Return the calibration temperature of the global model, if the clients have told it."""
    if schema.TEMPERATURE in outcome.told:
        return float(outcome.told[schema.TEMPERATURE])
    return fitted_temperature(outcome.held_out)


def at_temperature(prediction: Prediction, labels: Tensor, temperature: float) -> dict[str, Any]:
    """Return the line's entries on a temperature: T, and the scores without it."""
    plain = evaluate(prediction.probs, labels)
    ece = {f"ece_{bins}": evaluate(prediction.probs, labels, bins)["ece"] for bins in ECE_BINS}
    return {schema.TEMPERATURE: temperature, schema.UNTEMPERED: {**plain, **ece}}


def known(scores: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return the limits of scores as clients send them: of the global model, and of their own."""
    prefixes = (
        "",
        "local-",
        *(f"{model}{data}" for model in OWN.values() for data in DATA.values()),
    )
    found = {f"{p}{name}": limits for p in prefixes for name, limits in scores.items()}
    return {**found, **KNOWN_AT_TEMPERATURES}


def summary(trained: Sequence[ClientMetrics], held_out: Sequence[ClientMetrics]) -> dict[str, Any]:
    """Return the fairness of the clients' own models, and of the global one on their holdouts."""
    line: dict[str, Any] = {}
    if told := [client for client in trained if "local-accuracy" in client]:
        line[schema.LOCAL_MODELS] = _spread(told, "local-accuracy")
    if told := [client for client in held_out if client.keys() >= SCORES.keys()]:
        shown = [{k: v for k, v in client.items() if k not in TEMPERATURES} for client in told]
        tempered = least_nll(told)
        line[schema.HELD_OUT] = {
            **means(told),
            **({} if tempered is None else {"tempered_nll": tempered}),
            **_spread(told, "accuracy"),
            "clients": shown,
        }
    for data, part in DATA.items():
        both = {f"{OWN[model]}{part}accuracy" for model in ("global", "personal")}
        told = [client for client in held_out if client.keys() >= both]
        for model, prefix in OWN.items():
            name = f"{prefix}{part}accuracy"
            if of_model := [client for client in told if name in client]:
                spreads = line.setdefault(schema.PERSONAL, {}).setdefault(data, {})
                spreads[model] = _spread(of_model, name)
    return line


def uncertainty(prediction: Prediction, labels: torch.Tensor) -> dict[str, Any]:
    """Return the ECE in the usual bins, and the mean entropy with its two parts, in nats.

    One network tells no epistemic part.
    """
    line: dict[str, Any] = {
        f"ece_{bins}": evaluate(prediction.probs, labels, bins)["ece"] for bins in ECE_BINS
    }
    line[schema.UNCERTAINTY] = {
        "entropy": float(prediction.entropy.mean()),
        "aleatoric": float(prediction.aleatoric.mean()),
        **({} if prediction.networks == 1 else {"epistemic": float(prediction.epistemic.mean())}),
    }
    return line


def at_end(prediction: Prediction, labels: torch.Tensor, seed: int) -> dict[str, Any]:
    """Return selective accuracies: the most uncertain predictions are put aside.

    Beside them stands the ECE that a calibrated model of these confidences has by chance.
    """
    kept = accuracy_after_rejection(prediction.probs, labels, prediction.entropy, REJECTED)
    chance = {f"ece_{bins}": ece_by_chance(prediction.probs, bins, seed) for bins in ECE_BINS}
    rejection = {f"{part:.1f}": value for part, value in zip(REJECTED, kept, strict=True)}
    return {schema.REJECTION: rejection, schema.BY_CHANCE: chance}


def means(clients: Sequence[ClientMetrics], names: Iterable[str] = SCORES) -> dict[str, float]:
    """Return the means of the clients' scores, weighted by their numbers of examples.

    A score is that of the clients who have told it; NaN where none has.
    """
    found = {}
    for name in names:
        told = [client for client in clients if name in client]
        weights = [client["num-examples"] for client in told]
        values = [client[name] for client in told]
        found[name] = float(np.average(values, weights=weights)) if told else math.nan
    return found


def _spread(clients: Sequence[ClientMetrics], name: str) -> dict[str, float]:
    weights = [client["num-examples"] for client in clients]
    return fairness([client[name] for client in clients], weights)
