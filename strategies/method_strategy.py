"""The Flower strategy of a method: its messages, its state, and admission by its layout."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from logging import WARNING
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor, nn

from fedbary.aggregation.sums import under
from fedbary.errors import SettingError
from fedbary.methods import Bench, Method, Reply, Server, Tensors, require_room
from fedbary.predictive import Prediction, Predictive
from fedbary.predictive.predictor import Auto, Draws
from fedbary.seeds import derive_seed

from .arrays import Blanks
from .asking import CLIENTS_KEY, EXAMPLES_KEY
from .conventions import Convention, Names, convention_named
from .gated import STATE, InheritingStrategy
from .internals import log
from .pace import Paced
from .privacy import driving_wrapper

METHOD_KEY = "method"
"""The entry of a message's config with the method's name; its parameters stand beside it."""

KEPT_KEY = "kept-round"
"""The entry with the last round in which the client's reply was admitted, 0 for none. If known, the
same as before the last round that counted follows: the server may go back there."""

RUN_KEY = "kept-run"
"""The entry that distinguishes a client's tensors of several runs; a resumed run keeps it."""

_KEPT, _RUN = "kept.", "run"


class MethodStrategy(Paced, InheritingStrategy):
    """Rounds of a `fedbary.methods.Method` over Flower, with admission of replies.

    The server keeps the state of a round only if the round counts; `state_dict` holds it. Each
    training message names the method and its parameters, so that a `fedbary.strategies.Client`
    needs no settings of the method. A subclass names the `method_class`; `strategy_for` makes one
    from a method's name.

    Parameters
    ----------
    *args, **kwargs
        Those of `InheritingStrategy`, and the parameters of the method.
    convention : str or Convention
        Rule that tells which arrays are Gaussian, and the unit of their scales: a name in
        `CONVENTIONS`, or your own. The method is given fedbary's names and log-variances.
    seed : int
        Seed of every draw of the server.
    bench : Bench, optional
        Network and examples of the server, for methods with `needs_bench`.
    keep_models : bool
        Whether clients keep and score the model that they train. It is for methods whose clients
        keep nothing. Clients of a method that `personalises` have a model of their own anyway.

    Attributes
    ----------
    method : Method
        The method with its parameters.

    Raises
    ------
    SettingError
        If an argument is not allowed.
    """

    method_class: type[Method]

    def __init__(
        self,
        *args: Any,
        convention: str | Convention = "fedbary",
        seed: int = 0,
        bench: Bench | None = None,
        keep_models: bool = False,
        **kwargs: Any,
    ) -> None:
        names = {parameter.name for parameter in fields(self.method_class)}  # type: ignore[arg-type]
        own = {name: kwargs.pop(name) for name in names & kwargs.keys()}
        self.method = self.method_class(**own)
        if self.method.needs_bench and bench is None:
            allowed = f"a network and examples at the server for {self.method.name}"
            raise SettingError("bench", None, allowed)
        if keep_models and self.method.remembers and not self.method.personalises:
            allowed = f"False for {self.method.name}: what its clients keep is no model"
            raise SettingError("keep_models", keep_models, allowed)
        super().__init__(*args, **kwargs)
        self.convention = convention_named(convention)
        self._seed, self._bench = seed, bench
        self._keeps = self.method.remembers or keep_models
        self._personal = self.method.personalises or keep_models
        self._pending: Mapping[str, Tensor] = {}
        self._kept: dict[str, int] = {}
        self._run = secrets.randbits(62)
        self._kept_before: dict[str, int] | None = None
        self._round = self._nodes = 0

    @classmethod
    def _arguments(cls) -> list[str]:
        own = [parameter.name for parameter in fields(cls.method_class)]  # type: ignore[arg-type]
        return [*own, *super()._arguments()]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask nodes to train; note how many nodes there are."""
        messages = super().configure_train(server_round, arrays, config, grid)
        self._nodes = len(list(grid.get_node_ids()))
        return messages

    def _prepared(
        self, server_round: int, messages: list[Message], arrays: ArrayRecord
    ) -> list[Message]:
        """Send the method's content to each client, with its name and parameters."""
        self._round = server_round
        model = Names(arrays.keys(), self.convention).read(arrays)
        if self._round == 1:
            self._state, self._kept, self._kept_before = self._first_state(model), {}, None
            self._run = secrets.randbits(62)
        require_room(f"clients of {self.method.name}", self.method.held(len(messages)), model)
        earlier = [] if self._kept_before is None else [self._kept_before]
        kept = [self._kept, *earlier]
        messages = self._filled(messages, arrays, kept, self.method.send)
        return messages if self.prior_arrays is None else self._with_prior(messages, arrays)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the global model, or more to clients that score more."""
        messages = list(super().configure_evaluate(server_round, arrays, config, grid))
        if not (self._personal or self.method.shows):
            return messages
        return self._filled(messages, arrays, [self._kept], self.method.show)

    def _filled(
        self,
        messages: list[Message],
        arrays: ArrayRecord,
        kept: Sequence[Mapping[str, int]],
        content: Callable[[Server, str], Tensors],
    ) -> list[Message]:
        """Fill messages with their content, the method's name and parameters, and kept rounds."""
        names = Names(arrays.keys(), self.convention)
        server = self._server(model := names.read(arrays), Blanks())
        own = {METHOD_KEY: self.method.name}
        own |= {f"{METHOD_KEY}.{name}": value for name, value in self._told().items()}
        groups, before = self.groups, dict[str | None, tuple[Tensors, ArrayRecord]]()
        for message in messages:
            name = self._named(message.metadata.dst_node_id)
            sent = content(server, name)
            group = groups.get(name)
            if group not in before or not _are_same(sent, before[group][0]):
                before[group] = sent, _record(sent, model, names, arrays)
            said = ConfigRecord({**message.content.config_records[self.configrecord_key], **own})
            if self._keeps:
                said[KEPT_KEY] = [rounds.get(name, 0) for rounds in kept]
                said[RUN_KEY] = self._run
            message.content = RecordDict({self.configrecord_key: said})
            message.content[self.arrayrecord_key] = before[group][1]
        return messages

    def _told(self) -> dict[str, Any]:
        """Return the parameters for the clients; those without a value are left out."""
        own = asdict(self.method)  # type: ignore[call-overload]
        return {name: value for name, value in own.items() if value is not None}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume after the last whole round, beside the global arrays."""
        state = super().state_dict()
        state |= {STATE + name: tensor for name, tensor in self._state.items()}
        if self._keeps:
            numbers = {_KEPT + name: number for name, number in self._kept.items()}
            numbers[_RUN] = self._run
            state |= {name: torch.tensor(number) for name, number in numbers.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state that `state_dict` returned after so many rounds."""
        super().load_state_dict(state, completed_rounds)
        self._state = {name: tensor.clone() for name, tensor in under(STATE, state).items()}
        self._inherited = None if completed_rounds else self._state
        self._kept = {name: int(number) for name, number in under(_KEPT, state).items()}
        self._run = int(state.get(_RUN, self._run))

    def _check_global(self, arrays: ArrayRecord) -> None:
        """Refuse a model of the wrong kind, and wrappers: their noise does not reach the state."""
        gaussian = self.convention.pairs(arrays.keys())
        name = self.method.name
        if self.method.deterministic and gaussian:
            allowed = (
                f"another method for a network with Gaussian arrays ({min(gaussian)}), or for "
            )
            allowed += f"{name} the network without Gaussian layers"
            raise SettingError("method", name, allowed)
        if self.method.deterministic is False and not gaussian:
            allowed = f"another method for a network without Gaussian arrays; or for {name} make "
            allowed += "layers Gaussian, as fedbary.variational.variational does"
            raise SettingError("method", name, allowed)
        if wrapper := driving_wrapper():
            raise SettingError("method", name, f"AALV or FedAvg within {type(wrapper).__name__}")

    def _reply_like(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the form of a sound reply of the method."""
        names = Names(arrays.keys(), self.convention)
        model = names.read(arrays)
        return _record(self.method.reply_like(model), model, names, arrays)

    def _commit(
        self, reference: ArrayRecord, aggregate: ArrayRecord, admitted: Sequence[Message]
    ) -> ArrayRecord:
        """Keep the state of a round that counts, and the clients that it admitted."""
        self._state = self._pending
        self._kept_before = dict(self._kept)
        self._kept |= dict.fromkeys(map(self._name, admitted), self._round)
        return aggregate

    def _aggregate(self, sent: ArrayRecord, replies: Sequence[Reply]) -> ArrayRecord:
        """Return the global arrays that the method makes of admitted replies."""
        names, blanks = Names(sent.keys(), self.convention), Blanks()
        server = self._server(names.read(sent), blanks)
        try:
            result, self._pending = self._made(server, replies)
        except (ArithmeticError, torch.linalg.LinAlgError) as error:
            raise ValueError(f"{self.method.name} cannot compute with it: {error}") from error
        self.method.check_state(result, self._pending)
        tensors = dict(result)
        del result  # now only the dictionary refers to what lies in blanks
        return names.write(tensors, sent, blanks)

    def _made(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the method's model and state after the replies of a round."""
        return self.method.aggregate(server, replies)

    def predictive(self, model: Mapping[str, Tensor]) -> Predictive:
        """Return the networks that predict after the last round; `model` has the global tensors."""
        return self.method.predictive(model, self._state)

    def predict(
        self, network: nn.Module, arrays: ArrayRecord, x: Tensor, samples: int = 10, seed: int = 0
    ) -> Prediction:
        """Predict classes by draws, or by the networks that the method keeps.

        Parameters
        ----------
        network
            Has the global arrays' names and the device to use; the arrays are loaded into it.
        arrays
            The global arrays after the last round, as `start` returns them.
        x
            Inputs (N, …).
        samples
            Number of networks drawn, if the method draws some.
        seed
            Seed of the draws.
        """
        network.load_state_dict({**arrays.to_torch_state_dict()})
        model, generator = network.state_dict(), torch.Generator(x.device).manual_seed(seed)
        return Auto().predict(network, x, self.predictive(model), Draws(samples, generator))

    def _server(self, model: Mapping[str, Tensor], blanks: Blanks) -> Server:
        told = self.tell() if self.tell else {}
        return Server(
            model,
            self._state,
            self._round,
            derive_seed(self._seed, "server", self._round),
            self._bench,
            blanks.empty,
            examples=int(told.get(EXAMPLES_KEY, 0)) if self.max_weight_ratio is None else 0,
            clients=int(told.get(CLIENTS_KEY, self._nodes)),
            counted=self.max_weight_ratio is None,
            warn=lambda line: log(WARNING, "Round %d: %s", self._round, line),
        )


def _are_same(one: Tensors, other: Tensors) -> bool:
    """Whether messages hold the very same tensors, so that their bytes may be shared."""
    return one.keys() == other.keys() and all(one[name] is other[name] for name in one)


def _record(
    sent: Mapping[str, Tensor], model: Mapping[str, Tensor], names: Names, held: ArrayRecord
) -> ArrayRecord:
    """Write the content to send; unchanged arrays of the model are not written again."""
    if sent is model:
        return held
    new = {name: tensor for name, tensor in sent.items() if tensor is not model.get(name)}
    written = names.write(new, held, Blanks())
    return ArrayRecord(
        {key: written[key] if key in written else held[key] for key in map(names.key, sent)}
    )
