"""A client of any federation: it answers training and evaluation messages under any method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn import functional

from fedbary.data.batches import Augment
from fedbary.errors import SettingError
from fedbary.inference import Fit, Prior, Training, local_method
from fedbary.methods import Fitted, Local
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Auto, Draws
from fedbary.scores.metrics import evaluate
from fedbary.seeds import derive_seed
from fedbary.variational.frozen import require_same_frozen

from .answering import Request, global_model, part_asked, share_of


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
