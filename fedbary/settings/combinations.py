"""Combinations of a run's settings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from fedbary.attacks import hostile_count, is_omniscient
from fedbary.settings.model import require_data
from fedbary.settings.owners import (
    layers_of,
    method_kind,
    method_of,
    task_kind,
)
from fedbary.settings.task_words import (
    OfAdapters,
    OfClasses,
    OfGuarantees,
    OfImages,
    OfRows,
)

if TYPE_CHECKING:
    from fedbary.settings.model import Settings


def conflicts(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings that do not fit the others, each with what is allowed."""
    if settings.min_replies > settings.participants:
        yield "min_replies", f"from 1 to the {settings.participants} clients that train in a round"
    if settings.device == "cuda" and settings.engine == "ray" and settings.gpus_per_client == 0:
        yield "gpus_per_client", "auto or above 0 with device=cuda: 0 hides the GPUs from clients"
    yield from settings.pace.unfit(settings)
    yield from method_of(settings).unfit(settings)
    layers = layers_of(settings.model)
    adapts = settings.of_task(OfAdapters).adapters != "none"
    if layers is not None and settings.bayesian_layers > layers and not adapts:
        allowed = f"a whole number from 0 to {layers}, the layers of model={settings.model}"
        yield "bayesian_layers", allowed
    if settings.projection != "none" and settings.holdout == 0:
        yield "projection", "none without a holdout, on which clients score"
    calibrated = settings.of_task(OfClasses).calibrate == "temperature"
    if calibrated and not (settings.holdout and settings.evaluate_clients):
        yield "calibrate", "none without holdout and evaluate_clients above 0: clients fit it"
    yield from _with_sets(settings)
    yield from _with_attack(settings)
    task = task_kind(settings.task)
    settings.of_task(task.Parameters)
    words = dict(settings)
    for name in ("test_dataset", "ood_dataset"):
        if name in words:
            require_data(name, words[name], settings.task)
    for conditions in task.conditions:
        yield from ((name, allowed) for name, fits, allowed in conditions(settings) if not fits)
    yield from _with_best(settings)
    if has_earlier_prior(settings) and settings.start_from == "none":
        yield "prior", "normal or global without start_from, the earlier run"
    if settings.dataset == "none":
        yield from _without_data(settings)


def has_earlier_prior(settings: Settings) -> bool:
    """Return whether the earlier run's posterior is the prior of local inference."""
    return settings.local.prior in ("earlier", "earlier_only")


def _with_sets(settings: Settings) -> Iterator[tuple[str, str]]:
    if (own := settings.of_task(OfGuarantees)).conformal is None:
        return
    task = task_kind(settings.task)
    rows = issubclass(task.Parameters, OfRows)
    if own.conformal_by == "class" and task.numbers:
        yield "conformal_by", f"all or a column of levels for task={settings.task}"
    elif own.conformal_by not in ("all", "class") and not rows:
        yield "conformal_by", f"all or class for task={settings.task}"
    if settings.holdout == 0:
        yield "conformal", "none without holdout above 0: clients score what they hold out"
    if settings.keep_best != "none" and not settings.server_validates:
        chosen = "what clients hold out would choose the round and calibrate it"
        yield "keep_best", f"none with conformal, or evaluate_on=validation: {chosen}"


def _with_attack(settings: Settings) -> Iterator[tuple[str, str]]:
    if (attack := settings.hostile) is None:
        return
    clients = settings.clients
    hostile = hostile_count(attack.hostile_fraction, clients)
    if hostile == 0:
        yield "hostile_fraction", f"at least 1/{clients}: one of the {clients} clients"
    if is_omniscient(settings.attack) and 2 * hostile >= clients:
        allowed = f"below half of {clients} clients for {settings.attack}, the attack of a minority"
        yield "hostile_fraction", allowed


def _with_best(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.keep_best == "none":
        if settings.patience:
            yield "patience", "0 for keep_best=none, which has no best round"
        return
    scores = task_kind(settings.task).best_by
    if settings.keep_best not in scores:
        yield "keep_best", f"none, {', '.join(scores)} for task={settings.task}"
    clients_validate = settings.holdout > 0 and settings.evaluate_clients == 1
    if not (settings.server_validates or clients_validate):
        yield "keep_best", f"none without validation data, which {_validation(settings)} gives"
    calibrated = settings.of_task(OfClasses).calibrate == "temperature"
    if calibrated and settings.evaluate_clients != 1:
        yield "evaluate_clients", "1 for keep_best with calibrate=temperature, fitted every round"
    if settings.projection != "none" or method_kind(settings.method).personalises:
        yield "keep_best", "none if clients keep models of their own: those are of the last round"


def may_keep_best(settings: Settings, score: str) -> bool:
    """Return whether these settings may keep the round that is best by a score."""
    kept = settings.model_copy(update={"keep_best": score})
    return not any(name == "keep_best" for name, _ in chain(_with_sets(kept), _with_best(kept)))


def _validation(settings: Settings) -> str:
    """Return the settings that give a run validation data."""
    at_server, at_clients = "evaluate_on=validation", "holdout above 0 with evaluate_clients=1"
    if settings.dataset == "none":
        return at_clients
    return at_server if task_kind(settings.task).numbers else f"{at_server}, or {at_clients},"


def _without_data(settings: Settings) -> Iterator[tuple[str, str]]:
    words = dict(settings)
    for key in ("classes", "input_shape"):
        if words.get(key) == "auto":
            yield key, "not auto where dataset is none"
    if settings.of_task(OfClasses).ood_dataset != "none":
        yield "ood_dataset", "none where dataset is none"
    if settings.of_task(OfImages).corruptions:
        yield "corruptions", "false where dataset is none"
    if settings.train_fraction < 1:
        yield "train_fraction", "1 where dataset is none"
    if settings.server_fraction > 0:
        yield "server_fraction", "0 where dataset is none"
