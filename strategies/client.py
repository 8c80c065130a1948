"""A client of any federation: it answers training and evaluation messages under any method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn import functional

from fedbary.errors import SettingError
from fedbary.inference import Prior, Training, local_method
from fedbary.methods import Local, Method
from fedbary.predictive import Predictive
from fedbary.predictive.choice import predicted
from fedbary.scores.metrics import evaluate
from fedbary.seeds import derive_seed

from .answering import (
    METHOD_KEY,
    Place,
    fit,
    global_model,
    has_own_model,
    method_of,
    part_asked,
    personal,
    reply_of,
    share_of,
)


@dataclass(frozen=True, eq=False)
class Client:
    """A client's network, data and training, in a Flower project of one's own.

    The server's strategy is one of `fedbary.strategies` with the name of a method or a rule; its
    messages say which, so that the client names none:

        TRAINING = Training(epochs=5, batch_size=16, lr=0.02, kl_weight=0.01)

        @app.train()
        @app.evaluate()
        def answer(message, context):
            client = Client(network(), x, y, TRAINING, held_out=(x_test, y_test))
            return client.answer(message, context)

    Parameters
    ----------
    model : nn.Module
        The network, on its device; it is trained in place. The names of its state dict are those of
        the global arrays: a plain module for methods of point weights, for the others one with
        Gaussian layers, as `fedbary.variational.variational` makes them.
    x, y : Tensor
        What the client trains on: inputs and targets (n_k, …), on the model's device.
    training : Training
        Epochs, batch size, rates and the weight of the KL, whose default, 1, counts the prior once
        at every client: small weights suit barycentres, 1 suits PVI. A network with batch norm gets
        batches a little larger, if the last would be of one example.
    held_out : (Tensor, Tensor), optional
        Inputs and classes that evaluation messages are answered with.
    nll : callable
        Mean negative log-likelihood of (outputs, targets), in nats.
    inference : str
        The local inference, for methods that do not fix it.
    prior : Prior
        The std of N(0, std²), or a posterior, for methods that do not fix it.
    samples : int
        Networks drawn for a prediction.
    seed : int
        The source of the draws, with the node's partition, or its id, and the server round.
    keep_in : Path, optional
        A folder of this client alone for what some methods let clients keep between rounds. None:
        the node's state, which Flower loses when a SuperNode is started again.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    training: Training
    held_out: tuple[Tensor, Tensor] | None = None
    nll: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    inference: str = "variational"
    prior: Prior = 1.0
    samples: int = 10
    seed: int = 0
    keep_in: Path | None = None

    def answer(self, message: Message, context: Context) -> Message:
        """Return the reply to a training or an evaluation message, by the method that it names.

        An evaluation scores a classifier on `held_out`: accuracy, nll, ece and brier of the global
        model, and with ``personal-`` before them of the client's own, where the method has such.
        For anything else see `own_model`.

        Raises
        ------
        SettingError
            If a training message names no method, or parameters that the method does not have; if
            what the client kept is not there, or nothing is held out.
        """
        if message.metadata.message_type == MessageType.EVALUATE:
            return self._evaluated(message, context)
        config, received = _told(message)
        method = method_of(config)
        if method.needs_kl and self.training.kl_weight == 0:
            raise SettingError("kl_weight", 0, f"above 0 for {method.name}")
        local = self._local("train", config, context)
        fitted = fit(method, local, received, config, self._place(context))
        return reply_of(message, fitted, {"num-examples": len(self.y)})

    def own_model(self, message: Message, context: Context) -> Predictive | None:
        """Return the client's own model for an evaluation message; None where it has none.

        The server's strategy has a method that personalises, or `keep_models`. Some methods train
        the model for it.

        Raises
        ------
        SettingError
            As in `answer`.
        """
        config, received = _told(message)
        if METHOD_KEY not in config:
            return None
        local = self._local("own", config, context)
        return personal(method_of(config), local, received, config, self._place(context))

    def _evaluated(self, message: Message, context: Context) -> Message:
        if self.held_out is None:
            allowed = "(x, y) that the client does not train on, or fraction_evaluate=0.0"
            raise SettingError("held_out", None, allowed)
        config, received = _told(message)
        method = method_of(config) if METHOD_KEY in config else Method()
        models = {"": global_model(method, received, self.model.state_dict().keys())}
        if has_own_model(method, config):
            models["personal-"] = self.own_model(message, context) or models[""]
        x, y = self.held_out
        found: dict[str, int | float] = {"num-examples": len(y)}
        for owner, held in models.items():
            self.model.load_state_dict({**held.model})
            generator = torch.Generator(x.device).manual_seed(self._seed("score", config, context))
            prediction = predicted(
                "auto", self.model, x, self.samples, generator,
                held.posterior, held.members, pool=held.pool,
            )  # fmt: skip
            found |= {owner + name: value for name, value in evaluate(prediction.probs, y).items()}
        return Message(RecordDict({"metrics": MetricRecord({**found})}), reply_to=message)

    def _local(self, purpose: str, config: ConfigRecord, context: Context) -> Local:
        training = self.training.suited_to(self.model, len(self.y))
        return Local(
            self.model, self.x, self.y, self.nll, local_method(self.inference), training,
            self.prior, _round(config), self._seed(purpose, config, context),
            part=part_asked(config), share=share_of(config, len(self.y)),
        )  # fmt: skip

    def _seed(self, purpose: str, config: ConfigRecord, context: Context) -> int:
        node = int(context.node_config.get("partition-id", context.node_id))
        return derive_seed(self.seed, purpose, node, _round(config))

    def _place(self, context: Context) -> Place:
        return context.state if self.keep_in is None else self.keep_in


def _told(message: Message) -> tuple[ConfigRecord, Mapping[str, Tensor]]:
    arrays = next(iter(message.content.array_records.values()))
    return next(iter(message.content.config_records.values())), arrays.to_torch_state_dict()


def _round(config: ConfigRecord) -> int:
    return int(config["server-round"])  # type: ignore[arg-type]
