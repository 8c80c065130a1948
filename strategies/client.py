"""A client of any federation: it answers training and evaluation messages under any method."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from torch import Tensor, nn
from torch.nn import functional

from fedbary.aggregation.sums import select_prefix
from fedbary.data.batches import Augment
from fedbary.data.mechanism import Release
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.inference import Fit, Prior, Training, local_method
from fedbary.methods import Fitted, Local, Method, method_named
from fedbary.parts.registry import is_factory
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Auto, Draws
from fedbary.runs.memory import Memory
from fedbary.runs.released import ReleasedFiles
from fedbary.scores.metrics import evaluate
from fedbary.seeds import derive_seed
from fedbary.variational.frozen import require_same_frozen

from .federation import ASKED_KEY, CLIENTS_KEY, EXAMPLES_KEY, KEPT_KEY, PRIOR, RUN_KEY
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


@dataclass(frozen=True, eq=False)
class Client:
    """A client's network, data and training, for your own Flower project.

    The server's strategy is one of `fedbary.strategies`, named after a method or a rule. Its
    messages name the method, so the client does not:

        TRAINING = Training(epochs=5, batch_size=16, lr=0.02, kl_weight=0.01)

        @app.train()
        @app.evaluate()
        def answer(message, context):
            client = Client(network(), x, y, TRAINING, held_out=(x_test, y_test))
            return client.answer(message, context)

    Parameters
    ----------
    model : nn.Module
        The network, on its device; it is trained in place. Its state dict has the names of the
        global arrays. Methods with deterministic weights take a plain module, the others one with
        Gaussian layers, as `fedbary.variational.variational` makes them. If
        `fedbary.variational.keep_frozen` froze tensors, the messages' config holds their digest.
    x, y : Tensor
        Training data: inputs and targets (n_k, …), on the model's device.
    training : Training
        Epochs, batch size, rates and the weight of the KL. The weight's default, 1, counts the
        prior once at every client: it suits PVI, while barycentres need small weights. With batch
        norm batches are slightly larger if the last one would have one example.
    held_out : (Tensor, Tensor), optional
        Inputs and classes for the answers to evaluation messages.
    nll : callable
        Mean negative log-likelihood of (outputs, targets), in nats.
    inference : str or callable
        The local inference, for methods that leave it open: its name, or a function like `fit` of
        `fedbary.inference`.
    prior : Prior
        The std of N(0, std²), or a posterior, for methods that leave the prior open. A prior that
        the server sends replaces it.
    samples : int
        Networks drawn for a prediction.
    seed : int
        Seed of the draws, together with the node's partition, or its id, and the server round.
    keep_in : Path, optional
        A folder for this client alone, for the tensors that some methods keep between rounds, and
        for what was released with noise. None: the node's state, which Flower loses when a
        SuperNode restarts, and which knows no earlier run.
    augment : Augment
        Random changes of images, see `fedbary.data.batches.batch_source`.
    raw : Tensor, optional
        The inputs (n_k, …) as you hold them, if `x` are features of them: with `epsilon` the client
        counts what it has released of each. None: they are `x`.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    training: Training
    held_out: tuple[Tensor, Tensor] | None = None
    nll: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    inference: str | Fit = "variational"
    prior: Prior = 1.0
    samples: int = 10
    seed: int = 0
    keep_in: Path | None = None
    augment: Augment = False
    raw: Tensor | None = None

    def answer(self, message: Message, context: Context) -> Message:
        """Return the reply to a training or an evaluation message, by the method that it names.

        An evaluation scores a classifier on `held_out`: accuracy, nll, ece and brier of the global
        model, and those of the client's own, prefixed ``personal-``, if the method has one. For
        other scores see `own_model`.

        Raises
        ------
        SettingError
            If a training message names no method, or parameters that the method does not have; if
            the client's kept tensors are missing, nothing is held out, or frozen weights differ.
        """
        request = self._read(message, context)
        if message.metadata.message_type == MessageType.EVALUATE:
            return self._evaluated(request, context)
        fitted = self.fit(request, self._seed("train", request, context))
        return request.reply(fitted, {"num-examples": len(self.y)})

    def own_model(self, message: Message, context: Context) -> Predictive | None:
        """Return the client's own model for an evaluation message; None if it has none.

        The server's strategy needs a method that personalises, or `keep_models`. Some methods train
        the model when it is asked for.

        Raises
        ------
        SettingError
            As in `answer`.
        """
        request = self._read(message, context)
        return request.own_model(self._local(request, self._seed("own", request, context)))

    def fit(self, request: Request, seed: int) -> Fitted:
        """Do the client's work of a round, from a seed; the network keeps the trained tensors."""
        return request.fit(self._local(request, seed))

    def models(self, request: Request, seed: int) -> dict[str, Predictive]:
        """Return the models to score, by the prefixes of their scores' names.

        A client that has no model of its own yet would use the global one.
        """
        require_same_frozen(self.model, request.config)
        found = {"": global_model(request.method, request.received, self.model.state_dict().keys())}
        if request.scores_own_model:
            found["personal-"] = request.own_model(self._local(request, seed)) or found[""]
        return found

    def scores(
        self, models: Mapping[str, Predictive], score: Callable[[Predictive], Mapping[str, float]]
    ) -> dict[str, float]:
        """Return the models' scores by name; the network holds a model while it is scored."""
        found: dict[str, float] = {}
        for owner, held in models.items():
            self.model.load_state_dict({**held.model})
            found |= {owner + name: value for name, value in score(held).items()}
        return found

    def _evaluated(self, request: Request, context: Context) -> Message:
        if self.held_out is None:
            allowed = "(x, y) that the client does not train on, or fraction_evaluate=0.0"
            raise SettingError("held_out", None, allowed)
        x, y = self.held_out
        seed = self._seed("score", request, context)

        def score(by: Predictive) -> dict[str, float]:
            generator = torch.Generator(x.device).manual_seed(seed)
            prediction = Auto().predict(self.model, x, by, Draws(self.samples, generator))
            return evaluate(prediction.probs, y)

        models = self.models(request, self._seed("own", request, context))
        metrics = MetricRecord({"num-examples": len(y), **self.scores(models, score)})
        return Message(RecordDict({"metrics": metrics}), reply_to=request.message)

    def _local(self, request: Request, seed: int) -> Local:
        """Return the client's part in the round of a message."""
        require_same_frozen(self.model, request.config)
        config, examples, chosen = request.config, len(self.y), self.inference
        return Local(
            model=self.model,
            x=self.x,
            y=self.y,
            nll=self.nll,
            inference=local_method(chosen) if isinstance(chosen, str) else chosen,
            training=self.training.suited_to(self.model, examples),
            prior=request.prior or self.prior,
            round=request.round,
            seed=seed,
            augment=self.augment,
            part=part_asked(config),
            share=share_of(config, examples),
            raw=self.raw,
            release=request.release,
        )

    def _read(self, message: Message, context: Context) -> Request:
        return Request.read(message, context.state if self.keep_in is None else self.keep_in)

    def _seed(self, purpose: str, request: Request, context: Context) -> int:
        node = int(context.node_config.get("partition-id", context.node_id))
        return derive_seed(self.seed, purpose, node, request.round)
