"""A run's settings and their types."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from fedbary.attacks import ATTACKS, OMNISCIENT, Hostile, attack_named
from fedbary.data.forms import DataSource, elsewhere, source_of
from fedbary.data.partition import PARTITIONS
from fedbary.data.partitioners import EXTRA
from fedbary.errors import SettingError
from fedbary.parts.parameters import (
    BelowOne,
    Checked,
    Count,
    Number,
    Positive,
    Ratio,
    Share,
    ShareOrZero,
    parameters_of,
)
from fedbary.parts.registry import dataset_names_and_endings, is_factory, modules, predictors, rules
from fedbary.parts.registry import methods as names_of_methods
from fedbary.settings.modes import MODES, Asynchronous, Synchronous
from fedbary.settings.owners import (
    OWN_FORMS,
    divergences,
    method_kind,
    owned,
    rule_name,
    task_kind,
)
from fedbary.settings.partition_names import parameters_of as of_partition
from fedbary.settings.partition_names import partitioners

if TYPE_CHECKING:
    from fedbary.inference import PosteriorParameters

_Kind = TypeVar("_Kind", bound=Checked)

WITHOUT_STEPS = {"local_epochs": 1, "lr_schedule": "constant"}
"""Clients that take no steps of SGD, or follow a schedule of their own, have these values."""


class Settings(BaseModel):
    """Settings of every run; simulation.yaml has their meanings and defaults.

    The parameters of the run's parts are further settings; `validated` allows no others. The code
    reads them from the parts: `of_task`, `local`, `pace` and `hostile` are typed.
    ``dict(settings)`` has all of them by name, as on a command line.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    task: str

    clients: Count
    min_replies: Count
    max_skipped: Count
    round_timeout: Positive
    mode: Literal["rounds", "async"]

    dataset: str
    data_dir: str
    download: bool
    partition: str
    min_examples: Count
    holdout: BelowOne
    train_fraction: Share
    server_fraction: BelowOne

    model: str
    bayesian_layers: Number

    inference: str

    method: str
    max_weight_ratio: Literal["none"] | Ratio
    rounds: Count
    start_from: str
    new_examples: Number

    evaluate_on: Literal["test", "validation"]
    predictive: str
    samples: Number
    evaluate_clients: Number
    evaluate_fraction: Share
    keep_best: str
    patience: Number
    projection: str

    attack: str

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    replicate: Number
    engine: Literal["ray", "inline"]
    tracker: str
    pictures: bool
    device: Literal["auto", "cpu", "cuda"]
    cpus_per_client: Count
    gpus_per_client: Literal["auto"] | ShareOrZero
    output: str
    resume: Literal["none", "last", "previous"] | Number
    protocol: str

    def measures_clients(self, server_round: int) -> bool:
        """Return whether a round measures fairness: every `evaluate_clients`-th and the last."""
        every = self.evaluate_clients
        return every > 0 and (server_round % every == 0 or server_round == self.rounds)

    def may_be_kept(self, server_round: int) -> bool:
        """Return whether a round's model may be the result: the last, or any for the best."""
        return self.keep_best != "none" or server_round >= self.rounds

    @property
    def source(self) -> DataSource:
        """Source of the data."""
        return source_of(self.dataset)

    @property
    def server_validates(self) -> bool:
        """True if the server scores models on validation data of its own."""
        return self.evaluate_on == "validation" and self.dataset != "none"

    @property
    def weight_bound(self) -> float | None:
        """The largest ratio of a client's weight to the round's median; None for none."""
        return None if isinstance(self.max_weight_ratio, str) else self.max_weight_ratio

    @property
    def strategy(self) -> str:
        """Name of the run: its method, or the setting that the method is called by."""
        method = method_kind(self.method)
        return method.name if method.called_by == "method" else rule_name(dict(self)["rule"])

    @property
    def trains_on_squares(self) -> bool:
        """True if a regression's networks have no noise of their own: the method's flag."""
        return method_kind(self.method).squares

    @property
    def partition_parameters(self) -> tuple[tuple[str, Any], ...]:
        """The parameters of the partition, each with its value."""
        words, own = dict(self), of_partition(self.partition)
        return tuple((name, own[name].read(words[name])) for name in own)

    @property
    def participants(self) -> int:
        """Number of clients that train in a round."""
        return self.pace.asked(self.clients)

    def of_task(self, kind: type[_Kind]) -> _Kind:
        """Return the task's parameters that are of a kind, such as `OfClasses`.

        A task that lacks some has their defaults, which ask for nothing.
        """
        part: Any = kind
        found: _Kind = _of_task(self, part)
        return found

    @property
    def local(self) -> PosteriorParameters:
        """Parameters of local steps, and of the posterior; the defaults if a method uses none.

        `WITHOUT_STEPS` has the two defaults that differ from those of runs with steps.
        """
        return _local(self)

    @property
    def pace(self) -> Synchronous | Asynchronous:
        """Parameters of the mode."""
        return _pace(self)

    @property
    def hostile(self) -> Hostile | None:
        """The attack with its parameters; None for none."""
        return None if self.attack == "none" else attack_named(self.attack, dict(self))

    @field_validator("task", "method", "inference", "partition", "predictive", "attack", "tracker")
    @classmethod
    def _is_registered(cls, value: str, info: ValidationInfo) -> str:
        require_registered(str(info.field_name), value)
        return value

    @field_validator("projection")
    @classmethod
    def _has_divergence(cls, value: str) -> str:
        if value != "none" and value not in (known := divergences()):
            raise SettingError("projection", value, ", ".join(["none", *known]))
        return value

    @field_validator("dataset")
    @classmethod
    def _is_data(cls, value: str, info: ValidationInfo) -> str:
        require_data("dataset", value, str(info.data.get("task", "classification")))
        return value

    @field_validator("model")
    @classmethod
    def _is_model(cls, value: str) -> str:
        networks = modules("models")
        if value not in networks and not is_factory(value):
            raise SettingError("model", value, f"{', '.join(networks)}, or package.module:factory")
        return value


@lru_cache(256)
def _of_task(settings: Settings, kind: Any) -> Any:
    own: Any = task_kind(settings.task).Parameters
    if issubclass(own, kind):
        return parameters_of(own, dict(settings))
    return parameters_of(kind, vars(_of_task(settings, own)))


@lru_cache(256)
def _local(settings: Settings) -> PosteriorParameters:
    kind: type[PosteriorParameters] = import_module("fedbary.inference").PosteriorParameters
    return parameters_of(kind, WITHOUT_STEPS | dict(settings))


@lru_cache(256)
def _pace(settings: Settings) -> Synchronous | Asynchronous:
    return parameters_of(MODES[settings.mode], dict(settings))


def data_task(setting: str, task: str) -> str:
    """Return the task whose data sets a setting may name, for a run's task."""
    own = setting != "ood_dataset" or task in ("tables", "text") or is_factory(task)
    return task if own else "classification"


def require_data(setting: str, value: str, task: str) -> None:
    """Raise a SettingError unless a setting names data in a form that a run's task reads."""
    known, files = dataset_names_and_endings(data_task(setting, task))
    source, is_file = source_of(value), value.lower().endswith(files)
    if value in ("none", *known) or is_file or source.is_path or source.is_elsewhere:
        return
    also = f", the path of a file {', '.join(files)} or of a folder (with a slash: ./scans), "
    also += elsewhere()
    if setting == "dataset" and source.kind == "csv":
        also += "; a table needs task=regression or task=tables, and target=<its column>"
    raise SettingError(setting, value, ", ".join(known) + also)


def require_registered(setting: str, value: str) -> None:
    """Raise a SettingError unless a setting with a registry names one of its parts."""
    if setting == "partition" and value in PARTITIONS:
        return
    if setting in OWN_FORMS and is_factory(value):
        owned(setting, value)
        return
    allowed = registered(setting)
    if value not in allowed:
        also = f", or {OWN_FORMS[setting]}" if setting in OWN_FORMS else ""
        if setting == "partition" and not partitioners():
            also = f"; pip install 'fedbary[{EXTRA}]' brings those of flwr-datasets"
        raise SettingError(setting, value, ", ".join(allowed) + also)


def registered(setting: str) -> tuple[str, ...]:
    """Names that a setting with a registry may hold."""
    if setting == "rule":
        return tuple(rules())
    if setting == "method":
        return names_of_methods()
    if setting == "task":
        return modules("tasks")
    if setting == "inference":
        return modules("inference")
    if setting == "tracker":
        return ("none", *modules("runs/tracking"))
    if setting == "predictive":
        return tuple(predictors())
    if setting == "attack":
        return ("none", *ATTACKS, *OMNISCIENT)
    return (*PARTITIONS, *partitioners())
