"""What a federated method is: server state, messages, local work and aggregation as tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedbary.aggregation.tensors import Empty, new_empty
from fedbary.data.images import Augment
from fedbary.gaussian import Posterior
from fedbary.inference import Fit, Prior, Training
from fedbary.parameters import Checked
from fedbary.predictive.combine import Gate, Pool

Tensors = Mapping[str, Tensor]
"""Named tensors: everything that travels, is kept or is checkpointed. Keys are those of a model's
state dict, or of a method's own, which hold a slash."""


@dataclass(frozen=True, eq=False)
class Local:
    """What a client has in a round.

    Parameters
    ----------
    model : nn.Module
        The network; a method loads what it received and trains it in place.
    x, y : Tensor
        Inputs and targets (n_k, …), on the model's device.
    nll : callable
        Mean negative log-likelihood of (outputs, targets), in nats.
    inference : Fit
        The local inference that the run has chosen.
    training : Training
        Epochs, batch size and rates of the round.
    prior : Prior
        The prior that the run has chosen, for methods without one of their own.
    round : int
        From 1.
    seed : int
        The source of every draw of this client in this round.
    augment : Augment
        How images are changed at random.
    part : float
        Of all clients' examples, the part that lies at the round's clients; 1 where it is unknown.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    nll: Callable[[Tensor, Tensor], Tensor]
    inference: Fit
    training: Training
    prior: Prior
    round: int
    seed: int
    augment: Augment = False
    part: float = 1.0

    def load(self, tensors: Tensors) -> None:
        """Let the network hold the tensors of its state dict that are among these."""
        held = {name: tensors[name] for name in self.model.state_dict()}
        self.model.load_state_dict(held)

    def infer(self, prior: Prior) -> dict[str, float]:
        """Train the network by the local inference under a prior; return metrics of the fit."""
        return self.inference(
            self.model,
            self.x,
            self.y,
            prior,
            self.training,
            self.seed,
            augment=self.augment,
            nll=self.nll,
        )

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the network's state dict."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a client's round yields.

    Parameters
    ----------
    reply : Tensors
        What it sends.
    metrics : mapping
        Numbers for the server's log.
    kept : Tensors
        What it keeps for its next round, if the server admits this reply; private.
    """

    reply: Tensors
    metrics: Mapping[str, float]
    kept: Tensors = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Personal:
    """A client's own model.

    Parameters
    ----------
    model : Tensors
        Its state dict.
    members : Tensors
        Networks that predict together in its place: (K, *shape) by name, as of `Method.members`.
    posterior : Posterior, optional
        What networks are drawn from, where the model's own layers hold point weights.
    pool : Pool or Gate, optional
        How the members' predictions are joined, as of `Method.pool`.
    """

    model: Tensors
    members: Tensors = field(default_factory=dict)
    posterior: Posterior | None = None
    pool: Pool | Gate | None = None


@dataclass(frozen=True, eq=False)
class Bench:
    """What a server has to compute with: a network, and examples that are nobody else's.

    Parameters
    ----------
    network : nn.Module
        Of the global model's architecture, on the examples' device; what it holds does not matter.
    x, y : Tensor
        Inputs and targets, of no client and of no test set. Who needs inputs alone leaves y aside.
    nll : callable
        Mean negative log-likelihood of (outputs, targets), in nats.
    """

    network: nn.Module
    x: Tensor
    y: Tensor
    nll: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Server:
    """What the server has in a round.

    Parameters
    ----------
    model : Tensors
        The global model, a state dict.
    state : Tensors
        What the method keeps at the server.
    round : int
        From 1.
    seed : int
        The source of every draw of the server in this round.
    bench : Bench, optional
        Given to methods that say `needs_bench`.
    empty : Empty
        Makes tensors for a result; those that lie in the message's bytes need not be copied there.
    warn : callable
        Takes a line for the server's log.
    examples : int
        Of all clients, those that are not of the round with them; 0 where it is unknown.
    """

    model: Tensors
    state: Tensors
    round: int = 1
    seed: int = 0
    bench: Bench | None = None
    empty: Empty = new_empty
    warn: Callable[[str], None] = warnings.warn
    examples: int = 0


@dataclass(frozen=True, eq=False)
class Reply:
    """An admitted reply at the server.

    Parameters
    ----------
    client : str
        The site's name.
    weight : float
        Its number of examples.
    tensors : Tensors
        What it sent, as `Method.reply_like` has it.
    """

    client: str
    weight: float
    tensors: Tensors


class Method(Checked):
    """A published method: its parameters, as a frozen dataclass, and what it does each round.

    The server holds the global model, a state dict, and beside it the method's state. A round:

        client:  fitted = fit(local, send(server, client), kept)
        server:  model, state = aggregate(server, replies)

    Every tensor that outlives a round is in `model`, `state` or what the client keeps, so runs
    resume. A method is a module of `fedbary.methods` that defines one subclass.
    """

    name: ClassVar[str]
    """What the method is called; the class's name, where its definition says nothing else."""

    deterministic: ClassVar[bool | None] = False
    """Whether the method trains point weights: models with Gaussian tensors are refused. None: it
    takes models of either kind."""

    squares = False
    """Whether it trains regressions on squared errors, so that networks have no noise term."""

    remembers = False
    """Whether clients keep what `fit` returns as `kept`, and are given it in their next round."""

    personalises = False
    """Whether clients have models of their own, which they score beside the global one."""

    shows: ClassVar[bool] = False
    """Whether clients who score the global model are sent more than it: a method with a `show`."""

    needs_kl = False
    """Whether clients' priors must act: a `kl_weight` of 0 is refused."""

    needs_bench = False
    """Whether the server is to have a network and examples of its own."""

    samples_along = False
    """Whether its samples are points along the steps: the step size is constant by default."""

    called_by: ClassVar[str] = "method"
    """The setting whose value is what runs are called."""

    unused: ClassVar[tuple[str, ...]] = ()
    """Settings of training and prior that it does not use; a user who gives one is told so."""

    def __init_subclass__(cls) -> None:
        """Name the method, and note whether it shows clients what it does not send them."""
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        cls.shows = cls.show is not Method.show

    def check(self, clients: int, epochs: int) -> None:
        """Raise a SettingError if rounds of so many clients and epochs do not do for the method."""

    def check_rounds(self, rounds: int, patience: int) -> None:
        """Raise a SettingError if so many rounds, or so early an end, do not do for the method.

        A run ends after `patience` rounds without a better one; 0: after all its rounds.
        """

    def held(self, clients: int) -> int:
        """Return how many networks the server holds after a round of so many clients."""
        return 1

    def start(self, model: Tensors) -> Tensors:
        """Return the server's state before the first round."""
        return {}

    def send(self, server: Server, client: str) -> Tensors:
        """Return what a client is sent: the global model, unless a method says otherwise.

        A method that personalises sends what `members` and `posterior` need of the state under the
        keys of the state, as clients score the global model too.
        """
        return server.model

    def show(self, server: Server, client: str) -> Tensors:
        """Return what a client scores: by default what it is sent to train.

        A method that defines it adds what `members` and `posterior` need, under the state's keys.
        """
        return self.send(server, client)

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Do a client's work of a round: by default infer from the global model, and send all."""
        local.load(received)
        metrics = local.infer(local.prior)
        return Fitted(local.state(), metrics)

    def personal(self, local: Local, received: Tensors, kept: Tensors) -> Personal | None:
        """Return the client's own model; None where it has none, as before its first reply.

        It is asked for after a round, with what `send` then yields. By default it is what the
        client keeps: of a method that lets it keep nothing, the model that it trained last.
        """
        return Personal(kept) if kept else None

    def reply_like(self, model: Tensors) -> Tensors:
        """Return tensors with the names, shapes and dtypes of a sound reply."""
        return model

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the global model and the state after a round's admitted replies.

        The result does not depend on the order of the replies beyond rounding; the caller sorts
        them.
        """
        raise TypeError(f"{type(self).__name__} does not say how it aggregates")

    def check_state(self, model: Tensors, state: Tensors) -> None:
        """Raise a ValueError unless the state after a round, and its posterior, are finite.

        A variance of the posterior that is not positive has no finite logarithm.
        """
        held = {f"state {name!r}": tensor for name, tensor in state.items()}
        if type(self).posterior is not Method.posterior:
            log_vars = self.posterior(model, state).log_var
            held |= {f"log-variance {name!r}": tensor for name, tensor in log_vars.items()}
        for what, tensor in held.items():
            if not tensor.isfinite().all():
                raise ValueError(f"{self.name}'s {what} would not be finite")

    def posterior(self, model: Tensors, state: Tensors) -> Posterior:
        """Return the global posterior, from which predictions draw."""
        return Posterior.from_state_dict(model)

    def members(self, model: Tensors, state: Tensors) -> Tensors:
        """Return networks that predict together in place of draws: (K, *shape) by name, or none."""
        return {}

    def pool(self, model: Tensors, state: Tensors) -> Pool | Gate | None:
        """Return how the members' predictions become one; None for their mixture."""
        return None


def shares(replies: Sequence[Reply]) -> list[float]:
    """Return the replies' weights, divided by their sum."""
    total = sum(reply.weight for reply in replies)
    return [reply.weight / total for reply in replies]


def all_examples(server: Server, replies: Sequence[Reply]) -> float:
    """Return how many examples all clients have: those of the replies, where nobody knows more."""
    return max(float(server.examples), sum(reply.weight for reply in replies))


def weighted_mean(replies: Sequence[Reply], names: Sequence[str]) -> dict[str, Tensor]:
    """Return Σ w_k θ_k of some tensors, in their dtypes; of integer ones the rounded mean."""
    means = {}
    weights = shares(replies)
    for name in names:
        like = replies[0].tensors[name]
        total = torch.zeros_like(like, dtype=torch.float64)
        for reply, weight in zip(replies, weights, strict=True):
            total.add_(reply.tensors[name].double(), alpha=weight)
        means[name] = (total if like.is_floating_point() else total.round()).to(like.dtype)
    return means
