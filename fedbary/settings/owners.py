"""The parts that own settings, by kind, and the parameters of each.

It imports the parts, and PyTorch with them. `fedbary.parts.registry` has their names without
imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedbary.attacks import attack_class, attack_classes
from fedbary.data.partition import SCHEMES
from fedbary.parts.parameters import Parameter, declared
from fedbary.parts.registry import is_factory, modules, predictors
from fedbary.settings.modes import MODES
from fedbary.settings.partition_names import parameters_of

if TYPE_CHECKING:
    from fedbary.methods import Method
    from fedbary.predictive import Predictor
    from fedbary.settings.model import Settings
    from fedbary.tasks import Task

Owned = Mapping[str, Parameter]
"""The settings that a part owns, by name."""


BOOKKEEPING = frozenset(
    {
        "output",
        "data_dir",
        "download",
        "engine",
        "tracker",
        "pictures",
        "device",
        "cpus_per_client",
        "gpus_per_client",
        "round_timeout",
        "max_skipped",
        "new_examples",
        "resume",
        "protocol",
    }
)
"""Settings on the place and manner of a run, which do not change its results.

A protocol is visible in the other settings.
"""


OWN_FORMS = {
    "attack": "package.module:Class",
    "task": "package.module:Class",
    "method": "package.module:Class",
    "rule": "package.module:RULE",
}
"""The form of the name of a part of one's own, by the setting that chooses it."""


def methods() -> Mapping[str, type[Method]]:
    """Return the class of every method of the library by its name."""
    found: Mapping[str, type[Method]] = import_module("fedbary.methods").METHODS
    return found


def method_kind(name: str) -> type[Method]:
    """Return the class of a method, one's own too."""
    found: type[Method] = import_module("fedbary.methods").method_named(name)
    return found


@cache
def task_kind(name: str) -> type[Task]:
    """Return the class of a task, one's own too."""
    found: type[Task] = import_module("fedbary.tasks").task_class(name)
    return found


def usual_of(task: str, sections: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a task's defaults that differ from those of every run.

    Parameters
    ----------
    task
        The task. One's own has those of the task that it is derived from, and its `defaults`.
    sections
        Each task's section in simulation.yaml.
    """
    if not is_factory(task):
        return sections.get(task, {})
    found: dict[str, Any] = {}
    for above in reversed(task_kind(task).__mro__):
        room, _, name = above.__module__.rpartition(".")
        found |= sections.get(name, {}) if room == "fedbary.tasks" else {}
        found |= vars(above).get("defaults", {})
    return found


def method_of(settings: Settings) -> Method:
    """Return a run's method with its parameters."""
    found: Method = import_module("fedbary.methods").method_of(settings)
    return found


def kind_of(word: str) -> type[Predictor]:
    """Return the kind of prediction that a word names."""
    found: type[Predictor] = import_module("fedbary.predictive.predictor").kind_of(word)
    return found


def steps() -> Owned:
    """Return the parameters of a client's steps, for methods that make their own of them."""
    return declared(import_module("fedbary.inference").StepParameters)


def divergences() -> tuple[str, ...]:
    """Return the rules that minimise a divergence."""
    return tuple(import_module("fedbary.aggregation").DIVERGENCES)


def rule_name(rule: str) -> str:
    """Return a rule's own name: that of ``package.module:RULE`` is short."""
    return str(import_module("fedbary.aggregation").rule_named(rule).name)


def counts_hostile(rule: str) -> bool:
    """Return whether a rule depends on the fraction of clients that may be hostile."""
    found = import_module("fedbary.aggregation").rule_named(rule) if rule else None
    return getattr(found, "counts_hostile", False)


def models() -> Mapping[str, Owned]:
    """Return the parameters of every network, by the network's name."""
    return _declared_in("models")


def layers_of(model: str) -> int | None:
    """Return how many layers of a network may be Gaussian; None where its file does not say."""
    part = import_module(f"fedbary.models.{model}") if model in models() else None
    layers = getattr(part, "LAYERS", None)
    return None if layers is None else len(layers)


def local_methods() -> Mapping[str, Owned]:
    """Return the parameters of every local method, by its name."""
    return _declared_in("inference")


@cache
def owners() -> Mapping[str, Mapping[str, Owned]]:
    """Return each part's parameters, by the setting that chooses it and by its name.

    Partitioners of flwr-datasets are left out: they are imported where one is chosen. If two parts
    of a run own a setting of one name, the later kind defines it.
    """
    return {
        "task": {name: declared(task_kind(name).Parameters) for name in modules("tasks")},
        "partition": {name: declared(kind) for name, kind in SCHEMES.items()},
        "attack": {name: declared(kind) for name, kind in attack_classes().items()},
        "inference": local_methods(),
        "model": models(),
        "mode": {name: declared(kind) for name, kind in MODES.items()},
        "tracker": _declared_in("runs/tracking"),
        "predictive": {word: declared(kind_of(word)) for word in predictors()},
        "rule": {name: _of_rule(name) for name in import_module("fedbary.aggregation").RULES},
        "method": {name: declared(kind) for name, kind in methods().items()},
    }


def owned(setting: str, name: object) -> Owned:
    """Return a part's parameters; none for an unknown one, or a user's own network."""
    called = str(name)
    if setting == "partition":
        return parameters_of(called)
    if is_factory(called) and setting in OWN_FORMS:
        if setting == "rule":
            return _of_rule(called)
        if setting == "task":
            return declared(task_kind(called).Parameters)
        return declared(attack_class(called) if setting == "attack" else method_kind(called))
    return owners().get(setting, {}).get(called, {})


def owned_by(chosen: Settings | Mapping[str, Any]) -> dict[str, Owned]:
    """Return the parameters of each of a run's parts, by the setting that chooses it.

    A local method owns no parameter that the run's method leaves unused. If the method does not use
    the local inference, the steps replace it.
    """
    return dict(_owned_by(names(chosen)))


def names(chosen: Settings | Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the name of each of a run's parts, with the setting that chooses it.

    A rule's is the method's default where it is not given, and empty where the method has none.
    """
    values = dict(chosen)
    rule = declared(method_kind(values["method"])).get("rule")
    values["rule"] = values.get("rule", rule.default) if rule else ""
    return tuple((setting, str(values[setting])) for setting in owners())


@cache
def _owned_by(chosen: tuple[tuple[str, str], ...]) -> dict[str, Owned]:
    called = dict(chosen)
    found = {setting: owned(setting, name) for setting, name in chosen}
    unused = unused_by(method_kind(called["method"]))
    local = steps() if "inference" in unused else found["inference"]
    found["inference"] = {name: own for name, own in local.items() if name not in unused}
    return found


def unused_by(method: type[Method]) -> frozenset[str]:
    """Return the settings that other methods use and this one does not."""
    local = {name for own in local_methods().values() for name in own} - steps().keys()
    of_posteriors = {"inference", *local} if method.deterministic else ()
    return frozenset({"rule", *method.unused, *of_posteriors} - declared(method).keys())


def _of_rule(name: str) -> Owned:
    kind = import_module("fedbary.aggregation").rule_parameters(name)
    return {} if kind is None else declared(kind)


@cache
def bookkeeping() -> frozenset[str]:
    """Return the settings on the place and manner of a run, which do not change its results."""
    of_trackers = {name for own in _declared_in("runs/tracking").values() for name in own}
    return BOOKKEEPING | of_trackers


@cache
def _declared_in(room: str) -> Mapping[str, Owned]:
    """Return the parameters of a room's parts, by name; none for a part that declares none."""
    found = {
        name: import_module(f"fedbary.{room.replace('/', '.')}.{name}") for name in modules(room)
    }
    own = {name: m.Parameters for name, m in found.items() if hasattr(m, "Parameters")}
    return MappingProxyType({name: declared(own[name]) if name in own else {} for name in found})
