"""A run's settings and their types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from fedbary.attacks import ATTACKS, OMNISCIENT
from fedbary.data.forms import DataSource, elsewhere, source_of
from fedbary.data.partition import PARTITIONS
from fedbary.data.partitioners import EXTRA
from fedbary.errors import SettingError
from fedbary.parts.parameters import (
    BelowOne,
    Count,
    NotNegative,
    Number,
    Positive,
    Ratio,
    Share,
    told,
)
from fedbary.parts.registry import data_sets, is_factory, modules, predictors, rules
from fedbary.parts.registry import methods as names_of_methods
from fedbary.settings.modes import Synchronous
from fedbary.settings.owners import divergences, methods, task_kind
from fedbary.settings.partition_names import parameters_of, partitioners


class Settings(BaseModel):
    """Settings of every run; simulation.yaml has their meanings and defaults.

    The parameters of the run's parts are further settings; `validated` allows no others.
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
    samples: Count
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
    gpus_per_client: Literal["auto"] | NotNegative
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
        return str(getattr(self, methods()[self.method].called_by))

    @property
    def trains_on_squares(self) -> bool:
        """True if a regression's networks have no noise of their own: the method's flag."""
        return methods()[self.method].squares

    @property
    def partition_parameters(self) -> tuple[tuple[str, Any], ...]:
        """The parameters of the partition, each with its value."""
        own = parameters_of(self.partition).items()
        return tuple((name, found.read(getattr(self, name))) for name, found in own)

    @property
    def participants(self) -> int:
        """Number of clients that train in a round."""
        return max(1, round(told(Synchronous, self).participation * self.clients))

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


def data_task(setting: str, task: str) -> str:
    """Return the task whose data sets a setting may name, for a run's task."""
    own = setting != "ood_dataset" or task in ("tables", "text") or is_factory(task)
    return task if own else "classification"


def require_data(setting: str, value: str, task: str) -> None:
    """Raise a SettingError unless a setting names data in a form that a run's task reads."""
    known, files = data_sets(data_task(setting, task))
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
    if setting == "task" and is_factory(value):
        task_kind(value)
        return
    allowed = registered(setting)
    if value not in allowed:
        also = ", or package.module:Class" if setting == "task" else ""
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
