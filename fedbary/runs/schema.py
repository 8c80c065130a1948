"""Entries of a line of metrics.jsonl, named here alone.

Writers and readers take an entry's name from here. A value that is not finite is null. Scores have
the names that their task gives them; those of a user's own task are not listed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbary.settings.config import Settings

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


@dataclass(frozen=True)
class Entry:
    """An entry of a line.

    Parameters
    ----------
    name : str
        Its key.
    when : str
        Lines that have it.
    meaning : str
        Meaning of its value, with the unit.
    """

    name: str
    when: str
    meaning: str


ENTRIES: dict[str, Entry] = {}
"""Every entry by its name, in the order of the page."""

_ALWAYS = "each round"
_TRAINED = "rounds that trained"
_CLASSES = "tasks with classes, test data at the server"
_KEPT = "the last round; each with `keep_best`"


def _entry(name: str, when: str, meaning: str) -> str:
    ENTRIES[name] = Entry(name, when, meaning)
    return name


ROUND = _entry("round", _ALWAYS, "the round's number; round 0 is the initial model")
SECONDS = _entry("seconds", _ALWAYS, "seconds since the round before")
VIRTUAL_SECONDS = _entry("virtual_seconds", "with `speeds`", "seconds on the virtual clock")
LATENESS = _entry(
    "lateness", "with `mode=async`", "how many aggregates late each reply of this one was"
)
JOURNAL = _entry(
    "journal",
    "with `mode=async`",
    "the questions that ended, in order: `site`, `round`, `asked`, `arrived` in seconds, `end`",
)
LOG_VAR = _entry("log_var", _ALWAYS, "mean log-variance of each Gaussian tensor, by its name")
SKIPPED = _entry("skipped", _ALWAYS, "whether the global model stayed, as too few replies came")
ADMITTED = _entry("admitted", "from round 1 on", "how many replies were admitted")
REFUSED = _entry("refused", "from round 1 on", "why each refused reply was refused")
UNANSWERED = _entry("unanswered", "from round 1 on", "names of the sites that did not answer")
UNASKED = _entry(
    "unasked",
    "rounds in which a site's budget forbids an answer, or lets it wait",
    "names of the members that were not asked",
)
UNSHARED = _entry(
    "unshared", 'tables of sites without `share="estimate"`', "those sites, of earlier runs too"
)
CLIENTS = _entry("clients", _TRAINED, "each client's metrics of training, `site` its name")
LOG_VAR_SPREAD = _entry(
    "log_var_spread",
    _TRAINED,
    "standard deviation of the log-variances over the clients, averaged over weights, by tensor",
)
BYTES = _entry("bytes", _TRAINED, "bytes of arrays a client, mean: `down` to it, `up` from it")
MEMBERS = _entry("members", "several networks predict together", "how many networks")
POOL = _entry("pool", "a pool or a gate joins them", "`each` and `beta` of the pool, or `experts`")
BEST_ROUND = _entry("best_round", "with `keep_best`", "the best round so far; null before any")
CAUTIONS = _entry("cautions", "round 0, if there are any", "lines on sites and columns that differ")
STEP = _entry("step", "task=glm", "largest step of a contrast of coefficients, standard errors")
SETTLED = 1e-3
"""Largest step, of any contrast, in standard errors, after which one round more is the last."""

NEAR = 0.1
"""Largest step after which sites that may say little are asked: they expand near the mode."""

FAILING = _entry("failing", "models that learned nothing", "what is wrong, and what to try")
RISING = _entry("rising", "models that were better before", "by how much, and what to try")
BEHIND = _entry("behind", "models far behind a linear one", "how far, and what to try")

ACCURACY = _entry("accuracy", "tasks with classes", "fraction of right predictions")
NLL = _entry("nll", _ALWAYS, "mean negative log-likelihood, nats")
ECE = _entry("ece", "tasks with classes", "expected calibration error in `ece_bins` bins")
BRIER = _entry("brier", "tasks with classes", "Brier score, from 0 to 2")
AUROC = _entry("auroc", "tables", "area under the ROC curve")
SENSITIVITY = _entry("sensitivity", "tables", "sensitivity at the setting `specificity`")
RMSE = _entry("rmse", "regression", "root mean squared error, in the target's unit")
SHARPNESS = _entry("sharpness", "regression", "mean standard deviation, in the target's unit")
CRPS = _entry("crps", "regression", "continuous ranked probability score, in the target's unit")
COVERAGE_50 = _entry("coverage_50", "regression", "fraction of targets in the 50 % interval")
COVERAGE_90 = _entry("coverage_90", "regression", "fraction of targets in the 90 % interval")
COVERAGE_95 = _entry("coverage_95", "regression", "fraction of targets in the 95 % interval")
NOISE_VAR = _entry("noise_var", "regression", "variance of the noise, in standardised units")
WITHOUT_NOISE = _entry("without_noise", "regression with noise", "the scores without the noise")

TEMPERATURE = _entry("temperature", "with `calibrate`", "the clients' temperature")
UNTEMPERED = _entry("untempered", "with `calibrate`", "the scores at temperature 1")
ECE_15 = _entry("ece_15", _CLASSES, "expected calibration error in 15 bins")
ECE_100 = _entry("ece_100", _CLASSES, "expected calibration error in 100 bins")
UNCERTAINTY = _entry(
    "uncertainty", _CLASSES, "mean `entropy`, its `aleatoric` and its `epistemic` part, nats"
)
REJECTION = _entry("rejection", _KEPT, "accuracy after a fraction is rejected, by that fraction")
BY_CHANCE = _entry("by_chance", _KEPT, "ECE of a calibrated model with the same confidences")
MONTE_CARLO = _entry("monte_carlo", _KEPT, "standard deviation of the ECE over draws of networks")
CORRUPTED = _entry(
    "corrupted", f"{_KEPT}; with `corruptions`", "scores on corrupted images, by kind and strength"
)
OOD = _entry(
    "ood", f"{_KEPT}; with `ood_dataset`", "AUROC of telling out-of-distribution images apart"
)
LOCAL_MODELS = _entry(
    "local_models", "clients score their own models", "fairness of the local models' accuracies"
)
HELD_OUT = _entry(
    "held_out",
    "clients hold examples out",
    "mean scores of the global model there, with `calibrate` its `tempered_nll`, their fairness, "
    "and each site's under `clients`; the mean of the clients' ECE is not that of their examples",
)
GROUPS = _entry(
    "groups",
    "with `groups`",
    "each group's `sites`, and mean scores of its clients on what they hold out, by group",
)
PERSONAL = _entry(
    "personal",
    "methods with personal models",
    "fairness of each model's accuracies, on `held_out` data and by label `shares`",
)


Line = Mapping[str, Any]


def unshared(lines: Sequence[Line]) -> set[str]:
    """Return the names of the sites whose own estimates stay out of tables and pictures."""
    return {name for line in lines for name in line.get(UNSHARED, ())}


def validation_score(settings: Settings, line: Line) -> float:
    """Return a round's score `keep_best` on validation data; NaN if there is none.

    It is the server's score, or the mean over the clients' holdouts.
    """
    scores = line if settings.server_validates else line.get(HELD_OUT, {})
    value = scores.get(settings.keep_best)
    return math.nan if value is None else float(value)


def counted_rounds(lines: Sequence[Line]) -> list[int]:
    """Return the rounds that count: neither round 0, nor skipped."""
    return [line[ROUND] for line in lines if line[ROUND] > 0 and not line[SKIPPED]]


def best_round(settings: Settings, lines: Sequence[Line]) -> int | None:
    """Return the first of the rounds that are best by `keep_best`; None before there is any."""
    better = min if lower_is_better(settings.keep_best) else max
    scores = _scores(settings, lines)
    return better(scores, key=scores.__getitem__) if scores else None


def is_stale(settings: Settings, lines: Sequence[Line]) -> bool:
    """Return whether `patience` rounds have been scored since the best one."""
    best = lines[-1].get(BEST_ROUND)
    if not settings.patience or best is None:
        return False
    return sum(number > best for number in _scores(settings, lines)) >= settings.patience


def result_line(lines: Sequence[Line]) -> Line:
    """Return the line of the round whose model is the run's: the best if it is kept, or the last.

    `lines` are those of rounds 0, 1, ….
    """
    best = lines[-1].get(BEST_ROUND)
    return lines[-1] if best is None else lines[best]


def _scores(settings: Settings, lines: Sequence[Line]) -> dict[int, float]:
    """Return the scores of the rounds that count, by their numbers.

    Rounds without a finite score are left out: no client has evaluated them.
    """
    counted = counted_rounds(lines)
    scores = {
        line[ROUND]: validation_score(settings, line) for line in lines if line[ROUND] in counted
    }
    return {number: score for number, score in scores.items() if math.isfinite(score)}
