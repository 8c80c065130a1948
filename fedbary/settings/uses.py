"""Settings that a run's parts do not use: naming one of them is an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fedbary.data.forms import has_columns
from fedbary.errors import SettingError
from fedbary.parts.parameters import declared
from fedbary.parts.registry import is_factory
from fedbary.settings import limits
from fedbary.settings.config import Settings
from fedbary.settings.parameters import methods, models, unused_by
from fedbary.settings.partition_names import uses_alpha

_WITH_HOSTILE = ("TrimmedMean", "MultiKrum")

_OF_STEPS = (
    "local_epochs",
    "batch_size",
    "lr",
    "lr_schedule",
    "momentum",
    "weight_decay",
    "max_grad_norm",
    "log_var_lr",
    "init_log_var",
    "undamped_start",
    "augment",
)
"""Settings without use where the mode of a convex layer is found."""


def require_used(named: Iterable[str], settings: Settings) -> None:
    """Raise a SettingError for the first of the named settings that the run does not use.

    Parameters
    ----------
    named
        The settings that a person has named, for this run alone.
    settings
        The run's.
    """
    require_used_by_some(named, [settings])


def require_used_by_some(named: Iterable[str], runs: Sequence[Settings]) -> None:
    """Raise a SettingError for the first of the named settings that none of the runs uses."""
    unused = [dict(_unused(settings)) for settings in runs]
    for name in named:
        if all(name in without_use for without_use in unused):
            part, uses = unused[0][name]
            value = getattr(runs[0], name)
            raise SettingError(name, value, f"no value: {part} does not use it, but {uses}")


def _unused(settings: Settings) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield settings without use, each with the part that has none for it and what that uses."""
    task = limits.of(settings.task)
    for name in task.UNUSED:
        yield name, (f"task={settings.task}", task.USES)
    if settings.task == "classification" and not has_columns(settings.dataset):
        yield "target", (f"dataset={settings.dataset}", task.USES)
    method = methods()[settings.method]
    part = f"method={method.name}"
    for name in unused_by(method):
        yield name, (part, ", ".join(declared(method)))
    if settings.inference == "laplace":
        for name in _OF_STEPS:
            yield name, ("inference=laplace", "kl_weight, covariance")
    if settings.task == "regression" and method.squares:
        for name in ("momentum", "weight_decay", "max_grad_norm"):
            yield name, (part, "lr, lr_schedule, local_epochs, batch_size, noise")
    by_rule = "rule" in declared(method) and settings.rule not in _WITH_HOSTILE
    if by_rule and not settings.mixing:
        part = f"rule={settings.rule}"
        yield "trim_fraction", (part, "max_precision_ratio, max_weight_ratio, server_momentum")
    own_of_model = {} if is_factory(settings.model) else models().get(settings.model)
    if own_of_model is not None:
        of_networks = {name for parameters in models().values() for name in parameters}
        for name in of_networks & Settings.model_fields.keys() - own_of_model.keys():
            used = ", ".join(["bayesian_layers, init_log_var", *own_of_model])
            yield name, (f"model={settings.model}", used)
    if settings.backbone == "none":
        for name in ("backbone_weights", "backbone_size"):
            yield name, ("backbone=none", "a pretrained network does")
    if settings.features == "all":
        yield "whiten", ("features=all", "a number of components does")
    if settings.conformal == "none":
        for name in ("conformal_score", "conformal_by"):
            yield name, ("conformal=none", "a level such as conformal=0.9 does")
    if settings.attack == "none":
        yield "hostile_fraction", ("attack=none", "an attack does")
    own_of_partition = [name for name, _ in settings.partition_parameters]
    used = ", ".join(["min_examples", *own_of_partition])
    if settings.partition != "classes":
        also = "alpha, " if uses_alpha(settings.partition) else ""
        yield "classes_per_client", (f"partition={settings.partition}", also + used)
    if not uses_alpha(settings.partition):
        also = "classes_per_client, " if settings.partition == "classes" else ""
        yield "alpha", (f"partition={settings.partition}", also + used)
