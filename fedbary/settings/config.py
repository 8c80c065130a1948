"""Typed settings: simulation.yaml, a preset, and what the command line says, in this order."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedbary.attacks import ATTACKS
from fedbary.data.image_layout import parse_classes, parse_shape
from fedbary.data.partition import PARTITIONS
from fedbary.errors import SettingError
from fedbary.settings import limits
from fedbary.settings.earlier import translated
from fedbary.settings.parameters import Parameter, methods, models
from fedbary.settings.registry import is_factory, modules, rules

BARYCENTRE = "barycentre"
"""The method whose server takes the aggregate that the setting `rule` names."""

ROOT = Path(__file__).resolve().parents[2]
"""The clone, or the Flower app's bundle, that this package lies in."""

DEFAULTS = ROOT / "simulation.yaml"
"""The file of every default."""

BOOKKEEPING = frozenset(
    {
        "output",
        "data_dir",
        "download",
        "engine",
        "device",
        "cpus_per_client",
        "gpus_per_client",
        "round_timeout",
        "max_skipped",
        "resume",
        "protocol",
    }
)
"""Settings that say where and how a run is made, not what comes out of it.

A protocol is in the other settings.
"""

Positive = Field(gt=0, allow_inf_nan=False)
NotNegative = Field(ge=0, allow_inf_nan=False)


_EITHER = {
    "augment": "auto, true or false",
    "gpus_per_client": "auto, or a number from 0 up",
    "kl_weight": "share, or a number from 0 up",
    "max_precision_ratio": "none, or a number from 1 up",
    "max_weight_ratio": "none, or a number from 1 up",
    "noise": "none, cross, learned, or a number above 0",
}
"""What settings of two types may hold."""


class Settings(BaseModel):
    """Every setting of a run; simulation.yaml says what each means and holds the defaults.

    The parameters of the method are settings beside these; `validated` sees to it that there are
    no others.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    task: str

    clients: int = Field(ge=1)
    participation: float = Field(gt=0, le=1)
    min_replies: int = Field(ge=1)
    max_skipped: int = Field(ge=1)
    round_timeout: float = Positive

    dataset: str
    classes: str
    input_shape: str
    target: str
    split: int = Field(ge=0)
    data_dir: str
    download: bool
    partition: str
    alpha: float = Positive
    classes_per_client: int = Field(ge=1)
    min_examples: int = Field(ge=1)
    holdout: float = Field(ge=0, lt=1)
    server_fraction: float = Field(ge=0, lt=1)

    pixels: Literal["unit", "signed"]
    augment: Literal["auto"] | bool
    model: str
    hidden_units: int = Field(ge=1)
    noise: Literal["none", "cross", "learned"] | float
    class_weights: Literal["none", "balanced"]
    bayesian_layers: int = Field(ge=0)
    init_log_var: float = Field(ge=-40, le=40)

    inference: str
    prior: Literal["normal", "global"]
    prior_std: float = Positive
    kl_weight: Literal["share"] | float
    local_epochs: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    lr: float = Positive
    lr_schedule: Literal["constant", "cosine"]
    momentum: float = Field(ge=0, lt=1)
    weight_decay: float = NotNegative
    log_var_lr: float = NotNegative

    method: str
    rule: str
    server_momentum: float = Field(ge=0, lt=1)
    trim_fraction: float = Field(ge=0, lt=0.5)
    max_precision_ratio: Literal["none"] | float
    max_weight_ratio: Literal["none"] | float
    rounds: int = Field(ge=1)

    evaluate_on: Literal["test", "validation"]
    ood_dataset: str
    predictive: Literal["auto", "montecarlo", "members", "product", "dropout", "closed"]
    samples: int = Field(ge=1)
    ece_bins: int = Field(ge=1)
    specificity: float = Field(ge=0, le=1)
    evaluate_clients: int = Field(ge=0)

    attack: str
    hostile_fraction: float = Field(ge=0, le=1)

    seed: int = Field(ge=0, lt=2**63)
    engine: Literal["ray", "inline"]
    device: Literal["auto", "cpu", "cuda"]
    cpus_per_client: int = Field(ge=1)
    gpus_per_client: Literal["auto"] | float
    output: str
    resume: Literal["none", "last", "previous"]
    protocol: str

    def measures_clients(self, server_round: int) -> bool:
        """Whether fairness is measured in a round: every `evaluate_clients`-th and the last."""
        every = self.evaluate_clients
        return every > 0 and (server_round % every == 0 or server_round == self.rounds)

    def lr_of(self, server_round: int) -> float:
        """Return the rate of the means in a round; cosine: lr · ½ (1 + cos(π (t − 1)/rounds))."""
        if self.lr_schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1 + math.cos(math.pi * (server_round - 1) / self.rounds))

    @property
    def precision_bound(self) -> float | None:
        """The largest ratio of a precision to the clients' median; None for none."""
        return None if isinstance(self.max_precision_ratio, str) else self.max_precision_ratio

    @property
    def weight_bound(self) -> float | None:
        """The largest ratio of a client's weight to the round's median; None for none."""
        return None if isinstance(self.max_weight_ratio, str) else self.max_weight_ratio

    @property
    def strategy(self) -> str:
        """Name of the run's strategy: its method's, or of the barycentre its rule's."""
        return self.rule if self.method == BARYCENTRE else self.method

    @property
    def trains_on_squares(self) -> bool:
        """Whether a regression's networks have no noise of their own: the method's flag."""
        return self.method != BARYCENTRE and methods()[self.method].squares

    @property
    def participants(self) -> int:
        """Number of clients that train in a round."""
        return max(1, round(self.participation * self.clients))

    @model_validator(mode="after")
    def _can_be_admitted(self) -> Settings:
        if self.min_replies > self.participants:
            allowed = f"from 1 to the {self.participants} clients that train in a round"
            raise SettingError("min_replies", self.min_replies, allowed)
        return self

    @model_validator(mode="after")
    def _has_optimal_variances(self) -> Settings:
        if self.kl_weight == 0 and self.inference in ("ivon", "natural_gradient"):
            raise SettingError("kl_weight", 0.0, f"above 0 for inference={self.inference}")
        return self

    @model_validator(mode="after")
    def _fits_the_method(self) -> Settings:
        if self.method == BARYCENTRE:
            return self
        if methods()[self.method].deterministic != (self.bayesian_layers == 0):
            allowed = "0" if self.bayesian_layers else "1 or more"
            raise SettingError(
                "bayesian_layers", self.bayesian_layers, f"{allowed} for method={self.method}"
            )
        if self.attack != "none":
            raise SettingError("attack", self.attack, f"none for method={self.method}")
        if self.kl_weight == "share":
            raise SettingError("kl_weight", "share", f"a number for method={self.method}")
        return self

    @model_validator(mode="after")
    def _fits_the_task(self) -> Settings:
        for setting, allowed in limits.conflicts(self):
            raise SettingError(setting, getattr(self, setting), allowed)
        return self

    @model_validator(mode="after")
    def _can_be_scored(self) -> Settings:
        if self.dataset != "none":
            return self
        for key in ("classes", "input_shape"):
            if getattr(self, key) == "auto":
                raise SettingError(key, "auto", "not auto where dataset is none")
        if self.ood_dataset != "none":
            raise SettingError("ood_dataset", self.ood_dataset, "none where dataset is none")
        if self.server_fraction > 0:
            raise SettingError("server_fraction", self.server_fraction, "0 where dataset is none")
        return self

    @field_validator("classes", mode="before")
    @classmethod
    def _are_classes(cls, value: Any) -> str:
        if value != "auto":
            parse_classes(str(value))
        return str(value)

    @field_validator("input_shape")
    @classmethod
    def _is_shape(cls, value: str) -> str:
        if value != "auto":
            parse_shape(value)
        return value

    @field_validator("task", "rule", "method", "inference", "partition", "attack")
    @classmethod
    def _is_registered(cls, value: str, info: ValidationInfo) -> str:
        allowed = registered(str(info.field_name))
        if value not in allowed:
            raise SettingError(str(info.field_name), value, ", ".join(allowed))
        return value

    @field_validator("dataset", "ood_dataset")
    @classmethod
    def _is_data(cls, value: str, info: ValidationInfo) -> str:
        setting, task = str(info.field_name), str(info.data.get("task"))
        if setting == "ood_dataset" or task not in limits.TASKS:
            task = "classification"
        known, files = limits.of(task).DATASETS, limits.of(task).FILES
        if value in ("none", *known) or value.endswith(files):
            return value
        also = " or the path of an .npz file"
        if setting == "dataset" and value.endswith(".csv"):
            also += "; a table needs task=regression or task=tables, and target=<its column>"
        raise SettingError(setting, value, ", ".join(known) + also)

    @field_validator("model")
    @classmethod
    def _is_model(cls, value: str) -> str:
        networks = modules("models")
        if value not in networks and not is_factory(value):
            raise SettingError("model", value, f"{', '.join(networks)}, or package.module:factory")
        return value

    @field_validator("gpus_per_client", "kl_weight")
    @classmethod
    def _is_share(cls, value: str | float, info: ValidationInfo) -> str | float:
        name = str(info.field_name)
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise SettingError(name, value, _EITHER[name])
        return value

    @field_validator("noise")
    @classmethod
    def _is_variance(cls, value: str | float) -> str | float:
        if isinstance(value, float) and not 0 < value < math.inf:
            raise SettingError("noise", value, _EITHER["noise"])
        return value

    @field_validator("max_precision_ratio", "max_weight_ratio")
    @classmethod
    def _is_ratio(cls, value: str | float, info: ValidationInfo) -> str | float:
        name = str(info.field_name)
        if isinstance(value, float) and not 1 <= value < math.inf:
            raise SettingError(name, value, _EITHER[name])
        return value


def registered(setting: str) -> tuple[str, ...]:
    """Names that a setting with a registry may hold."""
    if setting == "rule":
        return rules()
    if setting == "method":
        return (BARYCENTRE, *methods())
    if setting == "task":
        return limits.TASKS
    if setting == "inference":
        return modules("inference")
    if setting == "attack":
        return ("none", *ATTACKS)
    return PARTITIONS


def resolve(overrides: Mapping[str, Any], file: Path = DEFAULTS) -> Settings:
    """Return the settings of a run.

    The order, the later over the earlier: simulation.yaml; what it says under `tasks` of the run's
    task; `file`, where it is another; the preset named by `protocol`; `overrides`.

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
    own: dict[str, Any] = {}
    if file.resolve() != DEFAULTS:
        own = translated(read_yaml(file))
        protocols |= _protocols(own.pop("protocols", {}), file)
    preset: Mapping[str, Any] = {}
    protocol = {**values, **own, **overrides}["protocol"]
    if protocol != "none":
        if not isinstance(protocol, str) or protocol not in protocols:
            raise SettingError("protocol", protocol, ", ".join(["none", *protocols]))
        preset = protocols[protocol]
    given = {**own, **preset, **translated(overrides)}
    of_task = tasks.get(str(given.get("task")), {})
    method = {**values, **of_task, **given}["method"]
    defaults: dict[str, Any] = {n: found.default for n, found in parameters_of(method).items()}
    model = {**values, **of_task, **given}["model"]
    own_of_model = models().get(str(model), {}).items()
    defaults |= {n: found.default for n, found in own_of_model if n not in values}
    if method in methods() and methods()[method].deterministic:
        defaults["bayesian_layers"] = 0
    return validated({**values, **of_task, **defaults, **given})


def validated(values: Mapping[str, Any]) -> Settings:
    """Return settings of which every one is given; no preset is applied to them.

    Raises
    ------
    SettingError
        If a key is unknown or a value is not allowed.
    """
    values = translated(values)
    own = {**models().get(str(values.get("model")), {}), **parameters_of(values.get("method"))}
    for key in values:
        if key not in Settings.model_fields and key not in own:
            _refuse(str(key), values, own)
    extra = {k: own[k].read(v) for k, v in values.items() if k not in Settings.model_fields}
    try:
        return Settings(**{**values, **extra})
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, SettingError):
            raise cause from None
        name = str(first["loc"][0])
        held = "missing" if first["type"] == "missing" else first["input"]
        raise SettingError(name, held, _allowed(name)) from None


def parameters_of(method: object) -> Mapping[str, Parameter]:
    """Return the parameters of a method by name; of the barycentre, or an unknown one, none."""
    found = methods().get(str(method))
    return found.parameters if found else {}


def _refuse(key: str, values: Mapping[str, Any], own: Mapping[str, Parameter]) -> NoReturn:
    """Raise the error of a key that is no setting of this run."""
    owners = [f"method={name}" for name, found in methods().items() if key in found.parameters]
    owners += [f"model={name}" for name, found in models().items() if key in found]
    if owners:
        chosen = f"method={values.get('method')} and model={values.get('model')}"
        used = ", ".join(own) or "none of their own"
        allowed = f"the parameters of {chosen}: {used}; {owners[0]} has {key}"
        raise SettingError("unknown setting", key, allowed)
    known = [*Settings.model_fields, *own]
    close = difflib.get_close_matches(key, known, n=1)
    raise SettingError(
        "unknown setting", key, f"{close[0]}, perhaps" if close else ", ".join(known)
    )


def parse_overrides(words: list[str]) -> dict[str, Any]:
    """Return {key: value} for words of the form key=value; the settings' types convert values."""
    overrides = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise SettingError("argument", word, "key=value")
        overrides[key] = value
    return overrides


def _protocols(presets: Any, file: Path) -> dict[str, dict[str, Any]]:
    if isinstance(presets, dict) and all(isinstance(preset, dict) for preset in presets.values()):
        return presets
    raise SettingError(
        f"{file}: protocols", presets, "names, each with lines of the form key: value"
    )


def _allowed(setting: str) -> str:
    """Say in words what a setting may hold, from its type and bounds."""
    field = Settings.model_fields[setting]
    if get_origin(field.annotation) is Literal:
        return ", ".join(get_args(field.annotation))
    kinds: dict[object, str] = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
    }
    if setting in _EITHER:
        return _EITHER[setting]
    bounds = {"gt": "above", "ge": "from", "lt": "below", "le": "to"}
    words = [kinds[field.annotation]]
    for constraint in field.metadata:
        for name, word in bounds.items():
            if hasattr(constraint, name):
                words.append(f"{word} {getattr(constraint, name):g}")
    return " ".join(words)


def read_yaml(file: Path) -> dict[str, Any]:
    """Return what a YAML file says under names; a SettingError names the file if it cannot."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError("settings file", str(file), "the path of a YAML file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingError(f"settings file {file}", error, "readable YAML") from None
    if not isinstance(values, dict):
        raise SettingError("settings file", str(file), "lines of the form key: value")
    return values
