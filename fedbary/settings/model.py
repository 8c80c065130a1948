"""What a run's settings are: their types, and which of them go together."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedbary.attacks import ATTACKS, OMNISCIENT
from fedbary.data.forms import HUB, TORCHVISION, is_source
from fedbary.data.image_layout import parse_classes, parse_shape
from fedbary.data.partition import PARTITIONS
from fedbary.data.partitioners import EXTRA
from fedbary.errors import SettingError
from fedbary.registry import is_factory, modules, rules
from fedbary.settings import limits
from fedbary.settings.combinations import conflicts
from fedbary.settings.parameters import methods
from fedbary.settings.partitioners import partitioners

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
        "resume",
        "protocol",
    }
)
"""Settings that say where and how a run is made, not what comes out of it.

A protocol is in the other settings.
"""

Positive = Field(gt=0, allow_inf_nan=False)
NotNegative = Field(ge=0, allow_inf_nan=False)
Count = Field(ge=1, le=10**9)


EITHER = {
    "augment": "auto, true, false, crop or flip",
    "gpus_per_client": "auto, or a number from 0 up",
    "kl_weight": "share, or a number from 0 up",
    "max_grad_norm": "none, or a number above 0",
    "max_precision_ratio": "none, or a number from 1 up",
    "max_weight_ratio": "none, or a number from 1 up",
    "noise": "none, cross, learned, or a number above 0",
}
"""Allowed values, in words, of settings that have two types."""


class Settings(BaseModel):
    """Every setting of a run; simulation.yaml says what each means and holds the defaults.

    The parameters of the method are settings beside these; `validated` sees to it that there are
    no others.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    task: str

    clients: int = Count
    participation: float = Field(gt=0, le=1)
    min_replies: int = Count
    max_skipped: int = Count
    round_timeout: float = Positive

    dataset: str
    classes: str
    input_shape: str
    target: str
    columns: str
    leave_out: str
    id: str
    missing: Literal["refuse", "mean", "median", "indicator"]
    split: int = Field(ge=0)
    data_dir: str
    download: bool
    partition: str
    alpha: float = Positive
    classes_per_client: int = Count
    min_examples: int = Count
    holdout: float = Field(ge=0, lt=1)
    train_fraction: float = Field(gt=0, le=1)
    server_fraction: float = Field(ge=0, lt=1)

    resize: Literal["none", "crop", "pad", "stretch"]
    normalise: Literal["none", "channels"]
    pixels: Literal["unit", "signed"]
    initialisation: Literal["he", "papers"]
    augment: Literal["auto", "crop", "flip"] | bool
    model: str
    hidden_units: int = Field(ge=1, le=10**4)
    noise: Literal["none", "cross", "learned"] | float
    class_weights: Literal["none", "balanced"]
    bayesian_layers: int = Field(ge=0)
    init_log_var: float = Field(ge=-40, le=40)

    inference: str
    prior: Literal["normal", "global"]
    prior_std: float = Positive
    kl_weight: Literal["share"] | float
    local_epochs: int = Count
    batch_size: int = Count
    lr: float = Positive
    lr_schedule: Literal["constant", "cosine"]
    momentum: float = Field(ge=0, lt=1)
    weight_decay: float = NotNegative
    max_grad_norm: Literal["none"] | float
    log_var_lr: float = NotNegative

    method: str
    rule: str
    server_momentum: float = Field(ge=0, lt=1)
    trim_fraction: float = Field(ge=0, lt=0.5)
    clipping: bool
    mixing: bool
    max_precision_ratio: Literal["none"] | float
    max_weight_ratio: Literal["none"] | float
    compress: Literal["none", "log_var", "all"]
    rounds: int = Count

    evaluate_on: Literal["test", "validation"]
    ood_dataset: str
    corruptions: bool
    predictive: Literal["auto", "montecarlo", "members", "product", "dropout", "closed"]
    calibrate: Literal["none", "temperature"]
    samples: int = Count
    ece_bins: int = Field(ge=1, le=10**5)
    specificity: float = Field(ge=0, le=1)
    evaluate_clients: int = Field(ge=0)
    evaluate_fraction: float = Field(gt=0, le=1)
    keep_best: str
    patience: int = Field(ge=0)
    projection: Literal["none", "WB", "RKLB"]

    attack: str
    hostile_fraction: float = Field(ge=0, le=1)

    seed: int = Field(ge=0, lt=2**63)
    replicate: int = Field(ge=0)
    engine: Literal["ray", "inline"]
    tracker: str
    pictures: bool
    device: Literal["auto", "cpu", "cuda"]
    cpus_per_client: int = Count
    gpus_per_client: Literal["auto"] | float
    output: str
    resume: Literal["none", "last", "previous"]
    protocol: str

    def measures_clients(self, server_round: int) -> bool:
        """Whether fairness is measured in a round: every `evaluate_clients`-th and the last."""
        every = self.evaluate_clients
        return every > 0 and (server_round % every == 0 or server_round == self.rounds)

    def may_be_kept(self, server_round: int) -> bool:
        """Whether a round's model may be the result: the last, or any if the best is kept."""
        return self.keep_best != "none" or server_round >= self.rounds

    @property
    def server_validates(self) -> bool:
        """Whether the server scores models on validation data of its own."""
        return self.evaluate_on == "validation" and self.dataset != "none"

    def lr_of(self, server_round: int) -> float:
        """Return the rate of the means in a round; cosine: lr · ½ (1 + cos(π (t − 1)/rounds)).

        It is constant where the method has a schedule of its own.
        """
        if self.lr_schedule == "constant" or "lr_schedule" in methods()[self.method].unused:
            return self.lr
        return self.lr * 0.5 * (1 + math.cos(math.pi * (server_round - 1) / self.rounds))

    @property
    def grad_bound(self) -> float | None:
        """The norm that longer gradients are shortened to; None for none."""
        return None if isinstance(self.max_grad_norm, str) else self.max_grad_norm

    @property
    def weight_bound(self) -> float | None:
        """The largest ratio of a client's weight to the round's median; None for none."""
        return None if isinstance(self.max_weight_ratio, str) else self.max_weight_ratio

    @property
    def strategy(self) -> str:
        """What the run is called: its method, or the setting that the method is called by."""
        return str(getattr(self, methods()[self.method].called_by))

    @property
    def trains_on_squares(self) -> bool:
        """Whether a regression's networks have no noise of their own: the method's flag."""
        return methods()[self.method].squares

    @property
    def partition_parameters(self) -> tuple[tuple[str, Any], ...]:
        """The parameters of a partitioner of flwr-datasets, each with its value."""
        own = partitioners().get(self.partition, {})
        return tuple((name, getattr(self, name)) for name in own)

    @property
    def participants(self) -> int:
        """Number of clients that train in a round."""
        return max(1, round(self.participation * self.clients))

    @model_validator(mode="after")
    def _fits_together(self) -> Settings:
        for setting, allowed in conflicts(self):
            raise SettingError(setting, getattr(self, setting), allowed)
        return self

    @field_validator("classes", mode="before")
    @classmethod
    def _are_classes(cls, value: Any) -> str:
        text = listed("classes", value)
        if text != "auto":
            parse_classes(text)
        return text

    @field_validator("columns", "leave_out", mode="before")
    @classmethod
    def _are_columns(cls, value: Any, info: ValidationInfo) -> str:
        return listed(str(info.field_name), value)

    @field_validator("input_shape")
    @classmethod
    def _is_shape(cls, value: str) -> str:
        if value != "auto":
            parse_shape(value)
        return value

    @field_validator("task", "rule", "method", "inference", "partition", "attack", "tracker")
    @classmethod
    def _is_registered(cls, value: str, info: ValidationInfo) -> str:
        allowed = registered(str(info.field_name))
        if value not in allowed:
            also = ""
            if info.field_name == "partition" and not partitioners():
                also = f"; pip install 'fedbary[{EXTRA}]' brings those of flwr-datasets"
            raise SettingError(str(info.field_name), value, ", ".join(allowed) + also)
        return value

    @field_validator("dataset", "ood_dataset")
    @classmethod
    def _is_data(cls, value: str, info: ValidationInfo) -> str:
        setting, task = str(info.field_name), str(info.data.get("task"))
        if setting == "ood_dataset" or task not in limits.TASKS:
            task = "classification"
        known, files = limits.of(task).DATASETS, limits.of(task).FILES
        is_file = value.lower().endswith(files)
        if value in ("none", *known) or is_file or "/" in value or is_source(value):
            return value
        also = f", the path of a file {', '.join(files)} or of a folder (with a slash: ./scans), "
        also += f"{HUB}owner/name, {TORCHVISION}NAME, or package.module:function"
        if setting == "dataset" and value.lower().endswith(".csv"):
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
            raise SettingError(name, value, EITHER[name])
        return value

    @field_validator("noise", "max_grad_norm")
    @classmethod
    def _is_above_zero(cls, value: str | float, info: ValidationInfo) -> str | float:
        name = str(info.field_name)
        if isinstance(value, float) and not 0 < value < math.inf:
            raise SettingError(name, value, EITHER[name])
        return value

    @field_validator("max_precision_ratio", "max_weight_ratio")
    @classmethod
    def _is_ratio(cls, value: str | float, info: ValidationInfo) -> str | float:
        name = str(info.field_name)
        if isinstance(value, float) and not 1 <= value < math.inf:
            raise SettingError(name, value, EITHER[name])
        return value


def listed(setting: str, value: Any) -> str:
    """Return names with commas between, which a YAML file may give as a list."""
    if not isinstance(value, list | tuple):
        return str(value)
    if bad := [v for v in value if not isinstance(v, str | int) or isinstance(v, bool)]:
        raise SettingError(setting, bad[0], "names; what YAML reads as something else in quotes")
    if bad := [name for name in map(str, value) if "," in name]:
        raise SettingError(setting, bad[0], "names without commas")
    return ",".join(map(str, value))


def registered(setting: str) -> tuple[str, ...]:
    """Names that a setting with a registry may hold."""
    if setting == "rule":
        return rules()
    if setting == "method":
        return tuple(methods())
    if setting == "task":
        return limits.TASKS
    if setting == "inference":
        return modules("inference")
    if setting == "tracker":
        return ("none", *modules("tracking"))
    if setting == "attack":
        return ("none", *ATTACKS, *OMNISCIENT)
    return (*PARTITIONS, *partitioners())
