"""A run's settings: from simulation.yaml, a preset and the command line, in this order."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from fedbary.data.forms import require_backbone
from fedbary.data.partition import PARTITIONS
from fedbary.errors import SettingError
from fedbary.parts.parameters import NONE, Parameter, Value, allowed
from fedbary.parts.registry import is_factory, parameter_names
from fedbary.settings.combinations import conflicts
from fedbary.settings.model import Settings, require_data, require_registered
from fedbary.settings.owners import (
    OWN_FORMS,
    layers_of,
    method_kind,
    names,
    owned,
    owned_by,
    owners,
    unused_by,
    usual_of,
)
from fedbary.settings.partition_names import partitioners
from fedbary.settings.uses import require_used
from fedbary.settings.yaml_file import DEFAULTS, read_yaml

FIRST_TASK = "classification"
"""The task of settings that name none."""

MISSPELT = 0.75
"""The least likeness, of `difflib`, of a misspelt word to the one that is meant."""


def resolve(overrides: Mapping[str, Any], file: Path = DEFAULTS) -> Settings:
    """Return the settings of a run, see `completed`; an override that it does not use is refused.

    Overrides that give every setting are taken as they are.

    Raises
    ------
    SettingError
        As in `completed`; or the run does not use an override.
    """
    if overrides.keys() >= Settings.model_fields.keys():
        return validated(overrides)
    settings = completed(overrides, file)
    require_used(overrides, settings)
    return settings


def completed(overrides: Mapping[str, Any], file: Path = DEFAULTS) -> Settings:
    """Return the settings of a run; settings that its parts do not use are left out.

    Later sources override earlier ones. They are simulation.yaml; its section in `tasks` for the
    run's task, or the `defaults` of a task of one's own; its section `on_features`, with a
    backbone; `file`, if it is another file; the preset that `protocol` names; `overrides`.

    Parameters
    ----------
    overrides
        Settings by name, as from a command line; strings are converted.
    file
        A YAML file of settings; it may name only some.

    Raises
    ------
    SettingError
        If the file cannot be read, a key or preset is unknown, or a value is not allowed.
    """
    values = read_yaml(DEFAULTS)
    protocols, tasks = values.pop("protocols"), values.pop("tasks")
    on_features = values.pop("on_features")
    own: dict[str, Any] = {}
    if file.resolve() != DEFAULTS:
        own = read_yaml(file)
        protocols |= _protocols(own.pop("protocols", {}), file)
    preset: Mapping[str, Any] = {}
    protocol = {**values, **own, **overrides}["protocol"]
    if protocol != "none":
        if not isinstance(protocol, str) or protocol not in protocols:
            raise SettingError("protocol", protocol, ", ".join(["none", *protocols]))
        preset = protocols[protocol]
    given = {**own, **preset, **overrides}
    _require_known({**values, **given})
    usual = usual_of(str(given.get("task")), tasks)
    values |= usual
    if given.get("backbone", "none") != "none":
        values |= on_features
    chosen = _typed({**values, **given})
    method = method_kind(chosen.method)
    adapts = given.get("adapters", "none") != "none"
    inference = "none" if "inference" in unused_by(method) else chosen.inference
    own_usual = {**method.defaults, **OF_INFERENCE.get(inference, {})}
    if "model" in own_usual:
        values["model"] = own_usual["model"]
        chosen = _typed({**values, **given})
    if (layers := layers_of(chosen.model)) is not None and not adapts:
        values["bayesian_layers"] = min(values["bayesian_layers"], layers)
    defaults = _defaults(chosen, values)
    values = {name: value for name, value in values.items() if name in Settings.model_fields}
    if method.deterministic:
        defaults["bayesian_layers"] = 0
    defaults |= own_usual
    if chosen.method == usual.get("method"):  # a task knows its own method's better
        defaults |= {
            name: held for name, held in usual.items() if name in TOGETHER & defaults.keys()
        }
    if (adapts or given.get("pixels") == "signed") and "normalise" in defaults:
        defaults["normalise"] = "none"
    others = _words_of_parts() - {name for own in owned_by(chosen).values() for name in own}
    given = {name: value for name, value in given.items() if name not in others}
    return validated({**values, **defaults, **given})


OF_INFERENCE: Mapping[str, Mapping[str, Any]] = {
    "laplace": {"model": "linear", "bayesian_layers": 0, "covariance": "diagonal"},
    "curvature": {"samples": 0},
}
"""Defaults that differ with some local inferences."""


TOGETHER = frozenset({"covariance", "prior_std"})
"""Parameters of methods that a task's section may give beside the task's own method."""


@cache
def _words_of_parts() -> frozenset[str]:
    words = (name for parts in owners().values() for own in parts.values() for name in own)
    return frozenset(words) - Settings.model_fields.keys()


def _defaults(chosen: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the chosen parts' parameters.

    simulation.yaml may give other defaults for the parts that a task chooses itself. A part with a
    default of its own keeps that.
    """
    found: dict[str, Any] = {}
    first = owned_by(values)
    for setting, own in owned_by(chosen).items():
        for name, parameter in own.items():
            usual = first[setting].get(name, parameter).default == parameter.default
            by_task = name in values and usual and setting != "method"
            found[name] = values[name] if by_task else parameter.default
    return found


def validated(values: Mapping[str, Any]) -> Settings:
    """Return settings that are all given; no preset is applied.

    A parameter of a part that is not given has its default.

    Raises
    ------
    SettingError
        If a key is unknown or a value is not allowed.
    """
    chosen = _typed(values)
    called = dict(names(chosen))
    owner = {
        name: (parameter, f"{setting}={called[setting]}")
        for setting, own in owned_by(chosen).items()
        for name, parameter in own.items()
    }
    extra = {
        name: _read(parameter, values.get(name, parameter.default), part)
        for name, (parameter, part) in owner.items()
        if name not in Settings.model_fields
    }
    settings = _typed({name: held for name, held in values.items() if name != "rule"}, extra)
    for setting, allows in conflicts(settings):
        raise SettingError(setting, dict(settings)[setting], allows)
    for key in values:  # last: only correct values tell whose parameters there are
        if key not in owner and key not in Settings.model_fields:
            _refuse(str(key), chosen)
    return settings


def _read(parameter: Parameter, value: object, part: str) -> Value:
    """Return a value of a part's parameter; an error says which part it is of."""
    try:
        found = parameter.read(value)
    except SettingError as error:
        raise SettingError(error.setting, error.value, f"{error.allowed} for {part}") from None
    return NONE if found is None else found


def _typed(values: Mapping[str, Any], extra: Mapping[str, Any] = MappingProxyType({})) -> Settings:
    """Return settings as their types, without their parts' own."""
    _require_names(values)
    try:
        found = {k: v for k, v in values.items() if k in Settings.model_fields or k == "rule"}
        return Settings(**{**found, **extra})
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, SettingError):
            raise _elsewhere(cause, str(values.get("task"))) from None
        name = str(first["loc"][0])
        held = "missing" if first["type"] == "missing" else values[name]
        allows = allowed(get_type_hints(Settings, include_extras=True)[name])
        raise SettingError(name, held, allows) from None


def _elsewhere(error: SettingError, task: str) -> SettingError:
    """Return an error that names the task's own setting which has the value.

    It imports PyTorch, so the first task, which has no such setting, is left out.
    """
    for name, own in owned("task", task).items() if task != FIRST_TASK else ():
        if get_origin(own.kind) is Literal and error.value in get_args(own.kind):
            here = f"{error.allowed}; perhaps {name}={error.value}"
            return SettingError(error.setting, error.value, here)
    return error


def _require_known(values: Mapping[str, Any]) -> None:
    """Raise a SettingError for a misspelt word; PyTorch is not imported.

    Parts of a user's own, and partitioners of flwr-datasets, may have further words.
    """
    has_own = any(is_factory(str(values.get(setting))) for setting in OWN_FORMS)
    if has_own or values["partition"] not in PARTITIONS:
        return
    known = [*Settings.model_fields, *parameter_names()]
    for key in map(str, values):
        if key not in known and (close := difflib.get_close_matches(key, known, 1, MISSPELT)):
            raise SettingError("unknown setting", key, f"{close[0]}, perhaps")


def _require_names(values: Mapping[str, Any]) -> None:
    """Raise a SettingError for a wrong name among parts' own words; PyTorch is not imported."""
    if "rule" in values:
        require_registered("rule", values["rule"])
    if "backbone" in values:
        require_backbone(str(values["backbone"]))
    for name in {"test_dataset", "ood_dataset"} & values.keys():
        require_data(name, str(values[name]), str(values.get("task")))


def parse_overrides(words: list[str]) -> dict[str, Any]:
    """Return {key: value} for words of the form key=value; the settings' types convert values."""
    overrides = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise SettingError("argument", word, "key=value")
        overrides[key] = value
    return overrides


def _refuse(key: str, chosen: Settings) -> NoReturn:
    """Raise the error of a key that is no setting of this run."""
    own = [name for parameters in owned_by(chosen).values() for name in parameters]
    known = [*Settings.model_fields, *own]
    allows = ", ".join(known)
    if close := difflib.get_close_matches(key, known, n=1):
        allows = f"{close[0]}, perhaps"
    elif whose := [f"partition={name}" for name, has in partitioners().items() if key in has]:
        allows = f"no value with partition={chosen.partition}; {', '.join(whose)} do"
    raise SettingError("unknown setting", key, allows)


def _protocols(presets: Any, file: Path) -> dict[str, dict[str, Any]]:
    if isinstance(presets, dict) and all(isinstance(preset, dict) for preset in presets.values()):
        return presets
    raise SettingError(
        f"{file}: protocols", presets, "names, each with lines of the form key: value"
    )
