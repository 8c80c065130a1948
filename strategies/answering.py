"""What a client does with a message by the method that it names: fit, recall, reply."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.methods import Fitted, Local, Method, method_named
from fedbary.predictive import Predictive
from fedbary.runs.memory import Memory

from .asking import ASKED_KEY, CLIENTS_KEY, EXAMPLES_KEY
from .kept import StateMemory
from .method_strategy import KEPT_KEY, METHOD_KEY, RUN_KEY

Place = Path | RecordDict | None
"""Where a client keeps tensors between rounds: a folder of its own, its node's state, nowhere."""


def fit(
    method: Method,
    local: Local,
    received: Mapping[str, Tensor],
    config: ConfigRecord,
    keep_in: Place,
) -> Fitted:
    """Let a method do the client's work, with what the client kept of its last admitted reply."""
    if KEPT_KEY not in config:
        return method.fit(local, received, {})
    memory, admitted, earlier = _memory(method, config, keep_in)
    fitted = method.fit(local, received, memory.recall(admitted))
    kept = fitted.kept if method.remembers else local.state()
    memory.keep(local.round, kept, {admitted, *earlier} if earlier else None)
    return fitted


def personal(
    method: Method,
    local: Local,
    received: Mapping[str, Tensor],
    config: ConfigRecord,
    keep_in: Place,
) -> Predictive | None:
    """Return the client's own model, from what it was sent and what it keeps."""
    if KEPT_KEY not in config:
        return method.personal(local, received, {})
    memory, admitted, _ = _memory(method, config, keep_in)
    return method.personal(local, received, memory.recall(admitted))


def _memory(
    method: Method, config: ConfigRecord, keep_in: Place
) -> tuple[Memory | StateMemory, int, list[int]]:
    """Return the client's memory of the run, and the rounds that the message names."""
    if keep_in is None:
        allowed = f"a folder for what {type(method).__name__} lets this client keep"
        raise SettingError("state-path", "none", allowed)
    admitted, *earlier = (int(number) for number in config[KEPT_KEY])  # type: ignore[union-attr]
    run = f"{int(config[RUN_KEY]):016x}"  # type: ignore[arg-type]
    memory = Memory(keep_in / run) if isinstance(keep_in, Path) else StateMemory(keep_in, run)
    return memory, admitted, earlier


def part_asked(config: ConfigRecord) -> float:
    """Return the part of all clients' examples that lies at those asked; 1 where nobody says so."""
    told = [config.get(key) for key in (ASKED_KEY, EXAMPLES_KEY)]
    asked, every = (float(number) if isinstance(number, int) else 0.0 for number in told)
    return min(1.0, asked / every) if asked > 0 and every > 0 else 1.0


def share_of(config: ConfigRecord, examples: int) -> float:
    """Return how many times the mean client's examples these are; 1 where nobody says so."""
    clients, every = (config.get(key) for key in (CLIENTS_KEY, EXAMPLES_KEY))
    known = isinstance(clients, int) and isinstance(every, int) and min(clients, every) > 0
    return examples * clients / every if known else 1.0  # type: ignore[operator]


def has_own_model(method: Method, config: ConfigRecord) -> bool:
    """Return whether the client of an evaluation message scores a model of its own."""
    return method.personalises or KEPT_KEY in config


def global_model(
    method: Method, received: Mapping[str, Tensor], names: Collection[str]
) -> Predictive:
    """Return the global model with the networks, or the posterior, by which the server predicts.

    Parameters
    ----------
    method
        The run's.
    received
        What the client was sent.
    names
        The keys of the model's state dict.
    """
    model = {name: received[name] for name in names}
    if not (method.personalises or method.shows):
        return Predictive(model)
    state = {name: tensor for name, tensor in received.items() if name not in model}
    return method.predictive(model, state)


def method_of(config: ConfigRecord) -> Method:
    """Return the method that a training message names, with the message's parameters.

    Raises
    ------
    SettingError
        If it names no method, or parameters that the method does not have.
    """
    if METHOD_KEY not in config:
        raise SettingError("message", "without a method", "one of a strategy named after a method")
    name = str(config[METHOD_KEY])
    prefix = METHOD_KEY + "."
    given = {k.removeprefix(prefix): v for k, v in config.items() if k.startswith(prefix)}
    try:
        return method_named(name)(**given)
    except TypeError as error:
        raise SettingError("method", name, f"one of this version's ({error})") from None


def reply_of(message: Message, fitted: Fitted, metrics: Mapping[str, Any]) -> Message:
    """Return the reply of a fit, with these metrics and the fit's own."""
    measured = {name.replace("_", "-"): value for name, value in fitted.metrics.items()}
    arrays = ArrayRecord({**fitted.reply})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({**metrics, **measured})})
    return Message(content, reply_to=message)
