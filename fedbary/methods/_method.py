"""A federated method: server state, messages, local work and aggregation as tensors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote

import torch
from torch import Tensor, nn

from fedbary.aggregation.sums import select_prefix
from fedbary.aggregation.tensors import Empty, new_empty
from fedbary.errors import SettingError
from fedbary.gaussian import Factor, Posterior, gaussian_pairs
from fedbary.inference import Local
from fedbary.methods._conditions import Conditions, Unfit, of_every_method
from fedbary.parts.parameters import Checked
from fedbary.predictive import Predictive, Predictor

if TYPE_CHECKING:
    from fedbary.settings.config import Settings

ALONG_STEPS = MappingProxyType({"lr_schedule": "constant"})
"""Defaults of methods whose samples are points along the steps."""

NETWORKS = "networks/"
"""The prefix of the keys of networks that a method keeps, stacked, in its state."""


@dataclass(frozen=True, eq=False)
class Bench:
    """A server's own network and examples, which no client has.

    Parameters
    ----------
    network : nn.Module
        A network of the global model's architecture, on the examples' device; its weights do not
        matter.
    x, y : Tensor
        Inputs and targets, of no client and of no test set. Methods that need inputs alone leave y
        aside.
    nll : callable
        Mean negative log-likelihood of (outputs, targets), in nats.
    """

    network: nn.Module
    x: Tensor
    y: Tensor
    nll: Callable[[Tensor, Tensor], Tensor]


_OLDER = "\n"
"""What a site's name ends with once for each run that has passed; no site's own name has it."""


@dataclass(frozen=True, eq=False)
class Inherited:
    """The end of an earlier run.

    Parameters
    ----------
    posterior : Posterior
        Its posterior.
    state : mapping of str to Tensor
        What its method kept at the server.
    places : tuple of int
        For each class of the new run the place that it had in the earlier one, −1 for a new class.
        Empty: the classes are the same.
    settings : mapping
        The earlier run's settings; empty where they are not known.
    """

    posterior: Posterior
    state: Mapping[str, Tensor]
    places: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def laid_out(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Return a tensor in the shape of `like`; rows of new classes are those of `like`.

        Raises
        ------
        ValueError
            If the shapes differ in more than the number of classes.
        """
        if tensor.shape == like.shape:
            return tensor.to(like)
        old = [place for place in self.places if place >= 0]
        rows = tensor.shape[:1] == (len(old),) and like.shape[:1] == (len(self.places),)
        if not rows or tensor.shape[1:] != like.shape[1:]:
            raise ValueError(f"of shape {tuple(tensor.shape)}, not {tuple(like.shape)}")
        found = like.clone()
        found[torch.tensor([place >= 0 for place in self.places])] = tensor[old].to(like)
        return found

    def factor(self, held: Factor, like: Factor) -> Factor:
        """Return a factor in the shapes of `like`, as `laid_out` does."""
        return Factor(
            {name: self.laid_out(held.shift[name], e) for name, e in like.shift.items()},
            {name: self.laid_out(held.precision[name], s) for name, s in like.precision.items()},
        )


def older(site: str) -> str:
    """Return what a site of a run is called in the next one, where its own name has new data."""
    return site + _OLDER


def whose(site: str) -> str:
    """Return the name of the site whose data these are."""
    return site.rstrip(_OLDER)


def age(site: str) -> int:
    """Return how many runs have passed since a site's data counted."""
    return len(site) - len(whose(site))


Tensors = Mapping[str, Tensor]
"""Named tensors: everything that travels, is kept or is checkpointed. Keys are those of a model's
state dict, or of a method's own, which hold a slash."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """The results of a client's round.

    Parameters
    ----------
    reply : Tensors
        Tensors that it sends.
    metrics : mapping
        Numbers for the server's log.
    kept : Tensors
        Tensors that it keeps for its next round, if the server admits this reply; private.
    """

    reply: Tensors
    metrics: Mapping[str, float]
    kept: Tensors = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Server:
    """The server's model, state and clients in a round.

    Parameters
    ----------
    model : Tensors
        The global model, a state dict.
    state : Tensors
        Tensors that the method keeps at the server.
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
        Number of all clients' examples, those outside the round included; 0: unknown.
    clients : int
        Number of clients, those outside the round included; 0: unknown.
    counted : bool
        True: a reply's weight is its number of examples; a bound on weights makes it less.
    """

    model: Tensors
    state: Tensors
    round: int = 1
    seed: int = 0
    bench: Bench | None = None
    empty: Empty = new_empty
    warn: Callable[[str], None] = warnings.warn
    examples: int = 0
    clients: int = 0
    counted: bool = True


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
        Tensors that it sent, as `Method.reply_like` has them.
    """

    client: str
    weight: float
    tensors: Tensors


@dataclass(frozen=True, eq=False)
class Arrival(Reply):
    """An admitted reply to a model that may be an earlier one.

    Parameters
    ----------
    sent : Tensors
        Tensors that the client was sent: the model of then, and what the method adds to it.
    part : float
        Part of the way that the server goes along it, see `fedbary.aggregation.arriving`; those of
        an aggregate sum to at most 1.
    at_work : int
        Number of clients at work at a time.
    counts : float
        How many replies of a round it counts as: the weight of its staleness.
    """

    sent: Tensors
    part: float
    at_work: int
    counts: float = 1.0


class Method(Checked):
    """A published method: its parameters, as a frozen dataclass, and what it does each round.

    Like every `Checked`, it raises a SettingError if a parameter is out of its range.

    The server holds the global model, a state dict, and beside it the method's state. A round:

        client:  fitted = fit(local, send(server, client), kept)
        server:  model, state = aggregate(server, replies)

    Every tensor that outlives a round is in `model`, `state` or what the client keeps, so runs
    resume. A method is a module of `fedbary.methods` that defines one subclass.
    """

    name: ClassVar[str]
    """The method's name; by default the class's."""

    deterministic: ClassVar[bool | None] = False
    """True: the method trains point weights, and refuses Gaussian tensors. None: it takes both."""

    squares = False
    """True: it trains regressions on squared errors, and networks have no noise term."""

    remembers = False
    """True: clients keep what `fit` returns as `kept`, and are given it in their next round."""

    needs_bench = False
    """True: the server needs a network and examples of its own."""

    often: ClassVar[int] = 4
    """Rounds after which a run nearly settles: a site with so many answers left need not wait."""

    members: ClassVar[type[Predictor] | None] = None
    """The kind of prediction by the networks that it keeps; None: it keeps none."""

    draws_around = False
    """True: predictions draw from another posterior than the model's own tensors."""

    called_by: ClassVar[str] = "method"
    """The setting whose value is what runs are called; it is not inherited."""

    unused: ClassVar[tuple[str, ...]] = ()
    """Settings of training and prior that it does not use."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of a run's settings that differ under it."""

    conditions: ClassVar[Sequence[Conditions]] = (of_every_method,)
    """Its conditions on a run's settings, beside those of the classes above it."""

    personalises: ClassVar[bool] = False
    """True: it defines `personal`, as clients score models of their own beside the global one."""

    shows: ClassVar[bool] = False
    """True: it defines `show`, as clients who score the global model are sent more."""

    def __init_subclass__(cls) -> None:
        """Name the method, and note what it defines."""
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        if "called_by" not in cls.__dict__:
            cls.called_by = "method"
        cls.personalises = cls.personal is not Method.personal
        cls.shows = cls.show is not Method.show

    def unfit(self, run: Settings) -> Unfit:
        """Yield the settings of a run that do not fit the method, each with what is allowed."""
        for kind in reversed(type(self).__mro__):
            for condition in vars(kind).get("conditions", ()):
                yield from condition(self, run)

    def check(self, clients: int, epochs: int) -> None:
        """Raise a SettingError if rounds of so many clients and epochs do not do for the method."""

    def passes(self, epochs: int, steps: int) -> float:
        """Return how often a reply takes a client through its examples, for a virtual clock.

        That is `epochs`, the run's `local_epochs` (1 if it has none), or the method's own steps. A
        pass has so many `steps`.
        """
        return epochs

    def held(self, clients: int) -> int:
        """Return how many networks the server holds after a round of so many clients."""
        return 1

    def start(self, model: Tensors) -> Tensors:
        """Return the server's state before the first round."""
        return {}

    def inherit(self, model: Tensors, inherited: Inherited) -> tuple[Tensors, Tensors]:
        """Return model and state before the first round of a run that starts from another."""
        return model, self.start(model)

    def send(self, server: Server, client: str) -> Tensors:
        """Return what a client is sent: the global model, unless a method says otherwise.

        A method that personalises sends what `predictive` needs of the state under the keys of the
        state, as clients score the global model too.
        """
        return server.model

    def show(self, server: Server, client: str) -> Tensors:
        """Return what a client scores: by default what it is sent to train.

        A method that defines this adds what `predictive` needs, under the state's keys.
        """
        return self.send(server, client)

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Do a client's work of a round: by default infer from the global model, and send all."""
        local.load(received)
        metrics = local.infer(local.prior)
        return Fitted(local.state(), metrics)

    def personal(self, local: Local, received: Tensors, kept: Tensors) -> Predictive | None:
        """Return the client's own model; None where it has none, as before its first reply.

        It is asked for after a round, with what `send` then yields. The default is what the client
        keeps, which a run may ask for: the model that it trained last.
        """
        return Predictive(kept) if kept else None

    def reply_like(self, model: Tensors) -> Tensors:
        """Return tensors with the names, shapes and dtypes of a sound reply."""
        return model

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the global model and the state after a round's admitted replies.

        The default is the mean by size, without a state. The result does not depend on the order
        of the replies beyond rounding; the caller sorts them.
        """
        return weighted_mean(replies, list(server.model)), {}

    def check_arrivals(self) -> None:
        """Raise a SettingError unless the method takes replies as they arrive."""
        if type(self).arrive is Method.arrive:
            allowed = f"rounds for {self.name}: it needs a round's replies"
            raise SettingError("mode", "async", allowed)

    def arrive(self, server: Server, arrivals: Sequence[Arrival]) -> tuple[Tensors, Tensors]:
        """Return the global model and the state after replies to models of any age.

        A client has one question at a time, so that of each there is one reply at most.
        """
        raise TypeError(f"{type(self).__name__} does not say what it does with arrivals")

    def step_length(self, model: Tensors, state: Tensors) -> float | None:
        """Return the step to a round's model in standard errors; None where it knows none.

        It is that of the contrast which has moved most by its own standard error.
        """
        return None

    def groups_of(self, state: Tensors) -> Mapping[str, str]:
        """Return each client's group by its name, for methods with a model for each group."""
        return {}

    def check_state(self, model: Tensors, state: Tensors) -> None:
        """Raise a ValueError unless the state after a round, and its posterior, are finite.

        A variance of the posterior that is not positive has no finite logarithm.
        """
        held = {f"state {name!r}": tensor for name, tensor in state.items()}
        if self.draws_around:
            log_vars = self.predictive(model, state).posterior.log_var
            held |= {f"log-variance {name!r}": tensor for name, tensor in log_vars.items()}
        for what, tensor in held.items():
            if not tensor.isfinite().all():
                raise ValueError(f"{self.name}'s {what} would not be finite")

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return what predicts: by default the networks kept, or draws from the model's Gaussians.

        A method whose posterior is another says `draws_around`. One that keeps networks says in
        `members` how they predict together; those under `NETWORKS` in its state are found there.
        """
        return Predictive(model, members=select_prefix(NETWORKS, state))

    def joining(self, fields: Mapping[str, Any]) -> Predictor | None:
        """Return how `predictive` joins the members, given its `kind`'s fields; none for None."""
        return self.members(**fields) if self.members and fields else None


def shares(replies: Sequence[Reply]) -> list[float]:
    """Return the replies' weights, divided by their sum."""
    total = sum(reply.weight for reply in replies)
    return [reply.weight / total for reply in replies]


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


def all_examples(server: Server, replies: Sequence[Reply]) -> float:
    """Return how many examples all clients have: those of the replies, where nobody knows more."""
    return max(float(server.examples), sum(reply.weight for reply in replies))


def part_of_all(server: Server, replies: Sequence[Reply]) -> float:
    """Return the part of all clients' examples that lies at a round's replies.

    If nobody knows these, it is the part of the clients. If nobody knows either, it is 1.
    """
    if server.examples:
        return min(1.0, sum(reply.weight for reply in replies) / server.examples)
    return min(1.0, len(replies) / server.clients) if server.clients else 1.0


def of_client(prefix: str, client: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return a client's tensors under the keys that a state has for them: prefix, client, name."""
    return {f"{prefix}{quote(client, safe='')}/{name}": t for name, t in tensors.items()}


def by_client(prefix: str, state: Tensors) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each client under a prefix of a state, in order of the quoted names."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in select_prefix(prefix, state).items():
        client, _, name = key.partition("/")
        found.setdefault(client, {})[name] = tensor
    return {unquote(client): found[client] for client in sorted(found)}


def completed(drawn: Tensors, model: Tensors) -> dict[str, Tensor]:
    """Return networks, stacked, of which some tensors were drawn; the others are the model's."""
    count = len(next(iter(drawn.values())))
    return {name: drawn.get(name, t.expand(count, *t.shape)) for name, t in model.items()}


def is_buffer(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor is a buffer: not floating, or batch norm's statistics."""
    return not tensor.is_floating_point() or name.endswith(("running_mean", "running_var"))


def weights_of(model: Tensors) -> list[str]:
    """Return the names of a state dict's weights: means and point tensors, without buffers."""
    log_vars = {*gaussian_pairs(model.keys()).values()}
    return [n for n, tensor in model.items() if n not in log_vars and not is_buffer(n, tensor)]


PART = 0.5
"""The part of a machine's memory that networks may take that are held beside one another."""


def require_room(setting: str, networks: int, model: Mapping[str, Tensor]) -> None:
    """Raise a SettingError if so many networks take more than half of the machine's memory.

    Parameters
    ----------
    setting
        The setting that sets their number.
    networks
        Number of them.
    model
        One of them.
    """
    each = sum(tensor.numel() * tensor.element_size() for tensor in model.values())
    room = int(PART * total_memory())
    if networks * each > room:
        size = f"{networks} networks of {each:,} bytes, {networks * each:,} bytes"
        raise SettingError(setting, size, f"at most {room:,} bytes, half of this machine's memory")


def total_memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
