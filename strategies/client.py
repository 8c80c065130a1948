"""What a client does with a message, under any method: train, or return a model of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn import functional

from fedbary.errors import SettingError
from fedbary.inference import Prior, Training, local_method
from fedbary.memory import Memory
from fedbary.methods import Fitted, Local, Method, Personal, method_named
from fedbary.seeds import derive_seed

from .method_strategy import KEPT_KEY, METHOD_KEY, RUN_KEY

EXAMPLES_KEY = "all-examples"
"""The entry of a training message's config with the number of examples of all clients."""


def train(
    message: Message,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    training: Training,
    nll: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
    inference: str = "variational",
    prior: Prior = 1.0,
    seed: int = 0,
    keep_in: Path | None = None,
) -> Message:
    """Do a client's work of a round by the method that the message names; return the reply.

    The server's strategy is one of `fedbary.strategies` with a method's name. The model's state
    dict has the names of the global arrays, as one made by `variational` has.

    Parameters
    ----------
    message : Message
        A training message.
    model : nn.Module
        The network, on the data's device. It is trained in place.
    x, y : Tensor
        The client's inputs and targets (n_k, …).
    training : Training
        Epochs, batch size and rates.
    nll : callable
        Mean negative log-likelihood of (outputs, targets), in nats.
    inference : str
        The local inference, for methods that do not fix it.
    prior : Prior
        The std of N(0, std²), or a posterior, for methods that do not fix it.
    seed : int
        The source of the draws, with the server round. Give every client its own.
    keep_in : Path, optional
        A folder of this client alone, for methods whose clients keep tensors between rounds.

    Returns
    -------
    Message
        The reply, with the weight ``num-examples`` and the metrics of the fit.

    Raises
    ------
    SettingError
        If the message names no method, or parameters that the method does not have, or if what the
        client kept is not there.
    """
    config, received = _told(message)
    server_round = int(config["server-round"])  # type: ignore[arg-type]
    local = Local(
        model, x, y, nll, local_method(inference), training, prior, server_round,
        derive_seed(seed, "train", server_round),
    )  # fmt: skip
    fitted = fit(method_of(config), local, received, config, keep_in)
    return reply_of(message, fitted, {"num-examples": len(y)})


def own_model(
    message: Message,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    training: Training,
    nll: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
    inference: str = "variational",
    prior: Prior = 1.0,
    seed: int = 0,
    keep_in: Path | None = None,
) -> Personal | None:
    """Return the client's own model for an evaluation message; None where it has none.

    The server's strategy has a method that personalises, or `keep_models`. The parameters are those
    of `train`; some methods train the model on (x, y).

    Raises
    ------
    SettingError
        As in `train`.
    """
    config, received = _told(message)
    server_round = int(config["server-round"])  # type: ignore[arg-type]
    local = Local(
        model, x, y, nll, local_method(inference), training, prior, server_round,
        derive_seed(seed, "own", server_round),
    )  # fmt: skip
    return personal(method_of(config), local, received, config, keep_in)


def fit(
    method: Method,
    local: Local,
    received: Mapping[str, Tensor],
    config: ConfigRecord,
    keep_in: Path | None,
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
    keep_in: Path | None,
) -> Personal | None:
    """Return the client's own model, from what it was sent and what it keeps."""
    if KEPT_KEY not in config:
        return method.personal(local, received, {})
    memory, admitted, _ = _memory(method, config, keep_in)
    return method.personal(local, received, memory.recall(admitted))


def _told(message: Message) -> tuple[ConfigRecord, Mapping[str, Tensor]]:
    arrays = next(iter(message.content.array_records.values()))
    return next(iter(message.content.config_records.values())), arrays.to_torch_state_dict()


def _memory(
    method: Method, config: ConfigRecord, keep_in: Path | None
) -> tuple[Memory, int, list[int]]:
    """Return the client's memory of the run, and the rounds that the message names."""
    if keep_in is None:
        allowed = f"a folder for what {type(method).__name__} lets this client keep"
        raise SettingError("state-path", "none", allowed)
    admitted, *earlier = (int(number) for number in config[KEPT_KEY])  # type: ignore[union-attr]
    return Memory(keep_in / f"{int(config[RUN_KEY]):016x}"), admitted, earlier  # type: ignore[arg-type]


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
