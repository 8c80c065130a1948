"""A client's answer to a message, which is read once, by the method that the message names."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedbary.aggregation.sums import select_prefix
from fedbary.data.mechanism import Release
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.methods import Fitted, Local, Method, method_named
from fedbary.parts.registry import is_factory
from fedbary.predictive import Predictive
from fedbary.runs.memory import Memory
from fedbary.runs.released import ReleasedFiles

from .federation import ASKED_KEY, CLIENTS_KEY, EXAMPLES_KEY
from .memory import KEPT_KEY, PRIOR, RUN_KEY
from .method_strategy import METHOD_KEY
from .state_memory import StateMemory, StateReleases

Place = Path | RecordDict | None
"""Place of a client's tensors between rounds: a folder of its own, its node's state, or none."""


@dataclass(frozen=True, eq=False)
class Request:
    """A message's request to a client.

    Parameters
    ----------
    message
        The message.
    config
        Its entries beside its arrays.
    received
        Its arrays, decoded once.
    keep_in
        Place of the tensors that the client's next round needs.
    """

    message: Message
    config: ConfigRecord
    received: Mapping[str, Tensor]
    keep_in: Place

    @classmethod
    def read(cls, message: Message, keep_in: Place) -> Request:
        """Read a message that asks to train or to evaluate."""
        config = next(iter(message.content.config_records.values()))
        arrays = next(iter(message.content.array_records.values()))
        return cls(message, config, arrays.to_torch_state_dict(), keep_in)

    @property
    def round(self) -> int:
        """The server round."""
        return int(self.config["server-round"])  # type: ignore[arg-type]

    @property
    def prior(self) -> Posterior | None:
        """The posterior of an earlier run that is the prior; None where the client has its own."""
        held = select_prefix(PRIOR, self.received)
        return Posterior.from_state_dict(held) if held else None

    @cached_property
    def method(self) -> Method:
        """The named method with the message's parameters; the plain one without a name.

        Raises
        ------
        SettingError
            If this version has no such method, or the method no such parameters; or if a method or
            rule is the server's own code, which this client does not import itself.
        """
        if METHOD_KEY not in self.config:
            return Method()
        name, prefix = str(self.config[METHOD_KEY]), METHOD_KEY + "."
        own = select_prefix(prefix, self.config)
        for word in map(str, (name, *own.values())):
            if is_factory(word) and word.partition(":")[0] not in sys.modules:
                raise SettingError("method", word, "code that this client's own code imports")
        try:
            return method_named(name)(**own)
        except TypeError as error:
            raise SettingError("method", name, f"one of this version's ({error})") from None

    def fit(self, local: Local) -> Fitted:
        """Do the client's work of a round, with the tensors of its last admitted reply.

        Raises
        ------
        SettingError
            If the message names no method, the method refuses the client's settings, or the
            client's kept tensors are missing.
        """
        method = self.method
        if METHOD_KEY not in self.config:
            allowed = "one of a strategy named after a method"
            raise SettingError("message", "without a method", allowed)
        if KEPT_KEY not in self.config:
            return method.fit(local, self.received, {})
        memory, admitted, earlier = self._memory()
        fitted = method.fit(local, self.received, memory.recall(admitted))
        kept = fitted.kept if method.remembers else local.state()
        memory.keep(local.round, kept, {admitted, *earlier} if earlier else None)
        return fitted

    def reply(self, fitted: Fitted, metrics: Mapping[str, Any]) -> Message:
        """Return the reply of a fit, with these metrics and the fit's own."""
        measured = {name.replace("_", "-"): value for name, value in fitted.metrics.items()}
        arrays = ArrayRecord({**fitted.reply})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({**metrics, **measured})})
        return Message(content, reply_to=self.message)

    @property
    def scores_own_model(self) -> bool:
        """True if the client of an evaluation message scores a model of its own."""
        return self.method.personalises or KEPT_KEY in self.config

    def own_model(self, local: Local) -> Predictive | None:
        """Return the client's own model, from the message and its kept tensors."""
        if KEPT_KEY not in self.config:
            return self.method.personal(local, self.received, {})
        memory, admitted, _ = self._memory()
        return self.method.personal(local, self.received, memory.recall(admitted))

    def release(self, release: Release) -> Mapping[str, Tensor]:
        """Return numbers with noise: those that this client has sent before, if it has.

        Raises
        ------
        SettingError
            If the client has no place to remember them.
        """
        if self.keep_in is None:
            allowed = "with epsilon a folder in which the site remembers what it has released, "
            allowed += "or for a part of a data set output=FOLDER in the run's settings"
            raise SettingError("state-path", "none", allowed)
        place = self.keep_in
        held = ReleasedFiles(place) if isinstance(place, Path) else StateReleases(place)
        return held.once(release)

    def _memory(self) -> tuple[Memory | StateMemory, int, list[int]]:
        """Return the client's memory of the run, and the rounds that the message names."""
        config, place = self.config, self.keep_in
        if place is None:
            allowed = f"a folder for what {type(self.method).__name__} lets this client keep"
            raise SettingError("state-path", "none", allowed)
        admitted, *earlier = (int(number) for number in config[KEPT_KEY])  # type: ignore[union-attr]
        run = f"{int(config[RUN_KEY]):016x}"  # type: ignore[arg-type]
        memory = Memory(place / run) if isinstance(place, Path) else StateMemory(place, run)
        return memory, admitted, earlier


def part_asked(config: ConfigRecord) -> float:
    """Return the asked clients' fraction of all examples; 1 if the message does not tell."""
    told = [config.get(key) for key in (ASKED_KEY, EXAMPLES_KEY)]
    asked, every = (float(number) if isinstance(number, int) else 0.0 for number in told)
    return min(1.0, asked / every) if asked > 0 and every > 0 else 1.0


def share_of(config: ConfigRecord, examples: int) -> float:
    """Return the ratio of these examples to the mean client's; 1 if the message does not tell."""
    clients, every = (config.get(key) for key in (CLIENTS_KEY, EXAMPLES_KEY))
    known = isinstance(clients, int) and isinstance(every, int) and min(clients, every) > 0
    return examples * clients / every if known else 1.0  # type: ignore[operator]


def global_model(
    method: Method, received: Mapping[str, Tensor], names: Collection[str]
) -> Predictive:
    """Return the global model with the networks, or the posterior, that the server predicts with.

    Parameters
    ----------
    method
        The run's.
    received
        Arrays that the client was sent.
    names
        The keys of the model's state dict.
    """
    model = {name: received[name] for name in names}
    if not (method.personalises or method.shows):
        return Predictive(model)
    state = {name: tensor for name, tensor in received.items() if name not in model}
    return method.predictive(model, state)
