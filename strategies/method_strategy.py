"""The Flower strategy of a method: its messages, its state, and admission by its layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from difflib import get_close_matches
from inspect import Parameter, Signature, signature
from logging import INFO, WARNING
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor, nn

from fedbary.aggregation.sums import select_prefix
from fedbary.errors import RunError, SettingError
from fedbary.gaussian import Posterior
from fedbary.methods import Bench, Method, Reply, Server, Tensors, full_name, require_room
from fedbary.methods._method import Inherited
from fedbary.predictive import Prediction, Predictive
from fedbary.predictive.predictor import Auto, Draws
from fedbary.seeds import derive_seed
from fedbary.settings.modes import Asynchronous

from .admission import Admission, Form, Refusal
from .arrays import Blanks
from .clocks import clock_of
from .conventions import Convention, Names, check_arrays, convention_named, names_of
from .federation import CLIENTS_KEY, EXAMPLES_KEY, STATE, Federation, Memory, question
from .internals import log, warn_of_newer_flower
from .pace import Arrivals, Pace, Start, settled
from .privacy import driving_wrapper, rounds_of_wrapper

METHOD_KEY = "method"
"""The entry of a message's config with the method's name; its parameters stand beside it."""

SKIPPED_KEY = "skipped"
"""The metric, 1, of a skipped round, whose global arrays stay as they were."""

FLOWER_NAMES: Mapping[str, str] = {
    "proximal_mu": "mu",
    "eta": "server_lr",
    "server_learning_rate": "server_lr",
    "beta_1": "beta1",
    "beta_2": "beta2",
    "beta": "trim_fraction",
    "num_malicious_nodes": "trim_fraction",
}
"""Names of arguments here by the names that Flower's strategies have for them."""

ANSWER = "fedbary.strategies.Client; see docs/howto/foreign.md, Published methods"
"""What reads messages that hold more than the model, and the page on it."""

AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]
"""Takes replies and the key of their weights, and returns their mean metrics."""


class MethodStrategy(FedAvg):
    """Flower's FedAvg with a `fedbary.methods.Method` in place of the mean, and admission.

    `admission` finds bad replies: unsound ones, those too far from the sent arrays, and those that
    spoil the aggregate. Bad replies never stop a run: they are left out, logged and kept
    in `refusals`. The aggregate does not depend on the order of the replies.

    The server keeps the state of a round only if the round counts; `state_dict` holds it. Each
    training message names the method and its parameters, so that a `fedbary.strategies.Client`
    needs no settings of the method. A subclass names the `method_class`; `strategy_for` makes one
    from a method's name. The first arguments are those of `flwr.serverapp.strategy.FedAvg`, in its
    order.

    Parameters
    ----------
    min_replies : int
        With fewer admitted training replies the round is skipped: the global arrays stay as they
        were, and the train metrics are ``{"skipped": 1}``.
    max_skipped : int or None
        Skipped rounds in a row after which the next ends the run with a RunError. None: never.
    max_weight_ratio : float, optional
        Largest ratio of a reply's weight to the round's median weight, 1 or more, in training and
        in evaluation. A larger weight is reduced to it. None: no bound. A client that claims a
        million times the others' examples then decides the aggregate, except under a robust rule.
    convention : str or Convention
        Rule that tells which arrays are Gaussian, and the unit of their scales: a name in
        `CONVENTIONS`, or your own. The method is given fedbary's names and log-variances.
    seed : int
        Seed of every draw of the server.
    bench : Bench, optional
        Network and examples of the server, for methods with `needs_bench`.
    keep_models : bool
        True: clients keep and score the model that they train. It is for methods whose clients
        keep nothing. Clients of a method that `personalises` have a model of their own anyway.
    prior_arrays : ArrayRecord, optional
        A posterior in the global arrays' names: clients use it as the prior in every round. Its
        Gaussian arrays are part of each training message. None: clients have their own prior.
    asynchronous : Asynchronous, optional
        The server does not wait for rounds; see `Arrivals`, which `pace` then is. None: rounds.
    seconds : callable, optional
        For `asynchronous`. Takes a node's id and the virtual time, and returns the seconds until
        the reply to a question asked then. Replies arrive in the order of this clock, at any real
        speed. None: they arrive as they come, in real time.
    journal : iterable of mappings, optional
        For `asynchronous`: the `journal` of all aggregates of an earlier run, which is repeated.
    federation : Federation, optional
        The choice, the names and the limits of the nodes.
    **parameters
        Those of the method.

    Raises
    ------
    TypeError
        If there is no argument of a name.
    SettingError
        If an argument is out of its range, or the method does not go without rounds.

    Attributes
    ----------
    method : Method
        The method with its parameters.
    admission : Admission
        Refuses replies, and counts the rounds.
    memory : Memory
        The method's state, and each client's last admitted round.
    pace : Pace
        Flower's rounds, or `Arrivals`.
    admitted_nodes : list of int
        The nodes whose metrics the metric aggregation functions get, in that order; none in a
        skipped round.
    contributors : list of int
        The nodes whose replies were aggregated in the last round that counted, in that order; empty
        before the first round of this start.
    """

    method_class: type[Method]

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None,
        *,
        min_replies: int = 1,
        max_skipped: int | None = 3,
        max_weight_ratio: float | None = None,
        convention: str | Convention = "fedbary",
        seed: int = 0,
        bench: Bench | None = None,
        keep_models: bool = False,
        prior_arrays: ArrayRecord | None = None,
        asynchronous: Asynchronous | None = None,
        seconds: Callable[[int, float], float] | None = None,
        journal: Iterable[Mapping[str, Any]] | None = None,
        federation: Federation | None = None,
        **parameters: Any,
    ) -> None:
        self.method = method = self._method_with(parameters)
        if method.needs_bench and bench is None:
            allowed = f"a network and examples at the server for {method.name}"
            raise SettingError("bench", None, allowed)
        if keep_models and method.remembers and not method.personalises:
            allowed = f"False for {method.name}: what its clients keep is no model"
            raise SettingError("keep_models", keep_models, allowed)
        super().__init__(
            fraction_train,
            fraction_evaluate,
            min_train_nodes,
            min_evaluate_nodes,
            min_available_nodes,
            weighted_by_key,
            arrayrecord_key,
            configrecord_key,
            train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn,
        )
        self.convention = convention_named(convention)
        self._seed, self._bench = seed, bench
        self._personal = method.personalises or keep_models
        self._nodes = 0
        self._forget()
        self.admitted_nodes: list[int] = []
        self.contributors: list[int] = []
        self.admission = admission = Admission(
            federation or Federation(),
            self.convention,
            weighted_by_key,
            self._withstands,
            min_replies,
            max_skipped,
            max_weight_ratio,
        )
        keeps = method.remembers or keep_models
        self.memory = Memory(method, keeps, prior_arrays)
        self.pace = Pace(admission)
        if asynchronous is not None:
            clock = clock_of(seconds, journal)
            self.pace = Arrivals(admission, asynchronous, clock, self._form, seed)
            method.check_arrivals()
            if keeps:
                allowed = "rounds if clients keep their trained models"
                raise SettingError("mode", "async", allowed)
        elif given := [each for each in (seconds, journal) if each is not None]:
            name = "seconds" if seconds else "journal"
            raise SettingError(name, given[0], "None, or give asynchronous too")

    def __init_subclass__(cls) -> None:
        """Write the method's parameters into the class's signature, for `help` and editors."""
        super().__init_subclass__()
        if hasattr(cls, "method_class") and cls.__init__ is MethodStrategy.__init__:
            cls.__signature__ = cls._signature()  # type: ignore[attr-defined]
        else:
            cls.__signature__ = None  # type: ignore[attr-defined]

    @classmethod
    def _signature(cls) -> Signature:
        """Return the signature of the class: Flower's arguments, ours, the method's parameters."""
        shared = list(signature(MethodStrategy.__init__).parameters.values())[1:-1]
        return Signature([*shared, *cls._parameters()])

    @classmethod
    def _parameters(cls) -> list[Parameter]:
        """Return the arguments of the class beside those that all methods have."""
        return parameters_of(cls.method_class)

    def _method_with(self, parameters: dict[str, Any]) -> Method:
        """Return the method with some parameters; a TypeError if it does not have one."""
        self._require_known(self.method_class, parameters)
        return self.method_class(**parameters)

    def _require_known(self, kind: type[Method], parameters: Mapping[str, Any]) -> None:
        own = {parameter.name for parameter in parameters_of(kind)}
        if unknown := sorted(parameters.keys() - own):
            takes, name = self._signature().parameters, type(self).__name__
            known = FLOWER_NAMES.get(unknown[0])
            close = [known] if known in takes else get_close_matches(unknown[0], takes, n=1)
            mend = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(takes)}"
            raise TypeError(f"{name} has no argument {unknown[0]!r}; {mend}")

    def _forget(self) -> None:
        """Forget an earlier start, where a subclass remembers more than this class."""

    @property
    def refusals(self) -> list[Refusal]:
        """The replies that were left out: at most 100 a phase, and the last 10,000 in all."""
        return self.admission.refusals

    @property
    def unanswered(self) -> set[int]:
        """The nodes that were asked in the last round and did not reply."""
        return self.admission.unanswered

    @property
    def counted(self) -> int:
        """Number of rounds that gave an aggregate, earlier starts included."""
        return self.admission.tally.counted

    @property
    def completed_rounds(self) -> int:
        """Rounds of earlier starts. Flower counts from 1; this is added to its count."""
        return self.admission.completed_rounds

    @property
    def groups(self) -> Mapping[str, str]:
        """Each client's group by its name; empty for methods without groups."""
        return self.method.groups_of(self.memory.state)

    def summary(self) -> None:
        """Log the least number of replies and the bound on weights, then FedAvg's settings."""
        log(INFO, "\t├──> Admission:")
        if (ratio := self.admission.max_weight_ratio) is not None:
            log(INFO, "\t│\t├──Maximum weight: %g × the median", ratio)
        log(INFO, "\t│\t└──Minimum replies: %d", self.admission.min_replies)
        if asked := self._asks_clients():
            log(INFO, "\t├──> Clients: %s", asked)
        super().summary()

    def _asks_clients(self) -> str:
        """Say what clients must do to read the messages; nothing if any loop can read them."""
        return f"for {self.method.name} they answer by {ANSWER}"

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds as `flwr.serverapp.strategy.Strategy.start` does.

        Raises
        ------
        RunError
            If `max_skipped` rounds in a row were skipped, or every round was.
        """
        warn_of_newer_flower()
        self._forget()
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        start = Start(grid, initial_arrays, num_rounds, timeout, *configs, evaluate_fn)
        result = self.pace.run(self, start)
        self.admission.tally.end()
        return result

    def start_from(self, arrays: ArrayRecord, state: Mapping[str, Tensor]) -> ArrayRecord:
        """Begin with an earlier run; return the arrays to start from.

        Sums and sites of the earlier run's clients are kept; what clients now send is added.

        Parameters
        ----------
        arrays
            The earlier run's global arrays, as `start` returns them.
        state
            What the earlier strategy's `state_dict` returned after its last round.

        Raises
        ------
        SettingError
            If the method needs what the earlier run does not have.
        ValueError
            If arrays or state are not finite.
        """
        names = names_of(arrays.keys(), self.convention)
        held = names.read(arrays)
        inherited = Inherited(Posterior.from_state_dict(held), select_prefix(STATE, state))
        model, first = self.method.inherit(held, inherited)
        started = names.write(dict(model), arrays, Blanks())
        self.begin(started, first)
        return started

    def begin(self, arrays: ArrayRecord, state: Tensors) -> None:
        """Begin with these arrays and this state of the method; a ValueError if one is unsound."""
        check_arrays(arrays, arrays, self.convention)
        self.method.check_state(names_of(arrays.keys(), self.convention).read(arrays), state)
        self.memory.inherit(state)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume after the last whole round, beside the global arrays."""
        parts = self.admission.tally, self.memory, self.pace
        return {name: tensor for part in parts for name, tensor in part.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state that `state_dict` returned after so many rounds, or a method's alone.

        `start`, given that round's global arrays and the number of remaining rounds, then continues
        as if there had been no interruption.
        """
        self.admission.completed_rounds = completed_rounds
        self.admission.tally.load_state_dict(state, completed_rounds)
        self.memory.load_state_dict(state, completed_rounds)
        self.pace.load_state_dict(state, (self.arrayrecord_key, self.configrecord_key))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask nodes to train; replies are compared with these arrays.

        Raises
        ------
        ValueError
            If the global arrays hold a scale without its mean.
        RunError
            If the last `max_skipped` rounds were skipped.
        SettingError
            If the arrays do not fit the strategy.
        """
        admission, first = self.admission, server_round == 1
        admission.begin(server_round, arrays)
        self._check_global(arrays)
        nodes = self.pace.trainers(admission.round)
        if nodes is None:
            sample, before, found = super().configure_train, 0, -1
            messages = list(sample(admission.round, arrays, config, grid))
            while first and len(messages) < admission.min_replies and before != found:
                before, found = found, settled(grid)
                messages = list(sample(admission.round, arrays, config, grid))
        else:
            messages = self._messages(admission.round, arrays, config, nodes, MessageType.TRAIN)
        if first:
            self.pace.require_enough(len(messages))
        model = names_of(arrays.keys(), self.convention).read(arrays)
        if admission.round == 1:
            self.memory.begin(model)
        require_room(f"clients of {self.method.name}", self.method.held(len(messages)), model)
        prior = self.memory.prior(arrays, self.convention)
        self._fill(messages, arrays, self.method.send, prior)
        admission.ask(messages, anew=True)
        if self.admission.federation.listener is not None:
            self.admission.federation.listener.asked([message.content for message in messages])
        self._nodes = len(list(grid.get_node_ids()))
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask nodes to evaluate; end a run that a wrapper drives.

        Clients that score more than the global model are sent more. Flower's wrappers for
        differential privacy do not call `start`, nor `aggregate_train` if they find no sound reply.

        Raises
        ------
        RunError
            If it is a wrapper's last round, and every round was skipped.
        """
        tally, number = self.admission.tally, server_round + self.completed_rounds
        if tally.is_open:
            tally.skip(number, "no replies were handed on")
        if self.admission.federation.evaluators is None:
            messages = list(super().configure_evaluate(number, arrays, config, grid))
        else:
            nodes = self.admission.federation.evaluators(number)
            messages = self._messages(number, arrays, config, nodes, MessageType.EVALUATE)
        self.admission.ask(messages)
        if server_round == rounds_of_wrapper():
            tally.end()
        if self._personal or self.method.shows:
            self._fill(messages, arrays, self.method.show)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the admitted replies and their metrics.

        Admission compares replies with the arrays of `configure_train`; if that was not called,
        with the first reply that is sound in itself.

        Returns
        -------
        arrays : ArrayRecord or None
            The aggregate; None if the round is skipped: Flower then keeps the old arrays.
        metrics : MetricRecord
            Result of `train_metrics_aggr_fn`; ``{"skipped": 1}`` if the round is skipped.

        Raises
        ------
        RunError
            If no round has counted, and no client can read the messages.
        """
        admission, replies = self.admission, list(replies)
        server_round += self.completed_rounds
        self.admitted_nodes = []
        sent = admission.first_sound(replies) if admission.sent is None else admission.sent
        form, others = self._form(sent), self.pace.other_weights()
        sound = admission.trained(server_round, replies, form, others)
        if replies and not self.counted and admission.all_need_client(server_round, len(replies)):
            raise RunError(f"no client can read the messages: {self._asks_clients()}")
        counted = admission.aggregated(server_round, sound, form, self._aggregate, self.pace.accept)
        if counted is None:
            return None, MetricRecord({SKIPPED_KEY: 1})
        arrays = self._commit(sent, counted.arrays, counted.admitted)
        admission.tally.count(server_round, counted.distances)
        self.contributors = [reply.metadata.src_node_id for reply in counted.admitted]
        usual = admission.with_usual_metrics(server_round, counted)
        self.admitted_nodes = [self.contributors[k] for k in usual]
        contents = [counted.admitted[k].content for k in usual]
        if self.admission.federation.listener is not None:
            heard = dict(zip(self.admitted_nodes, contents, strict=True))
            tensors = [counted.replies[k].tensors for k in usual]
            self.admission.federation.listener.trained(heard, tensors)
        return arrays, self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate the metrics of the admitted replies; None if there are none.

        A reply whose metrics cannot be averaged with the others' is refused too.
        """
        server_round += self.completed_rounds
        admitted = self.admission.evaluated(server_round, list(replies))
        if not admitted:
            return None
        contents = [reply.content for reply in admitted]
        self.admitted_nodes = [reply.metadata.src_node_id for reply in admitted]
        if self.admission.federation.listener is not None:
            heard = dict(zip(self.admitted_nodes, contents, strict=True))
            self.admission.federation.listener.evaluated(heard)
        return self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)

    def predictive(self, model: Mapping[str, Tensor]) -> Predictive:
        """Return the networks that predict after the last round; `model` has the global tensors."""
        return self.method.predictive(model, self.memory.state)

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

    def _messages(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        node_ids: list[int],
        message_type: str,
    ) -> list[Message]:
        """Make the messages to chosen nodes, as Flower makes those to its own."""
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return self._construct_messages(record, node_ids, message_type)

    def _construct_messages(
        self, record: RecordDict, node_ids: list[int], message_type: str
    ) -> list[Message]:
        """Make a message for each node, marked with its question."""
        config = record.config_records[self.configrecord_key]
        config.update(self.admission.federation.entries())
        group_id = question(message_type, cast(int, config["server-round"]))
        return [Message(record, node_id, message_type, group_id=group_id) for node_id in node_ids]

    def _fill(
        self,
        messages: list[Message],
        arrays: ArrayRecord,
        content: Callable[[Server, str], Tensors],
        prior: ArrayRecord | None = None,
    ) -> None:
        """Fill messages with their content, the method's name and parameters, and kept rounds.

        Messages to train have a prior, perhaps without arrays.
        """
        names = names_of(arrays.keys(), self.convention)
        server = self._server(model := names.read(arrays), Blanks())
        own = {METHOD_KEY: full_name(type(self.method))}
        own |= {f"{METHOD_KEY}.{name}": value for name, value in self._told().items()}
        groups, before = self.groups, dict[str | None, tuple[Tensors, ArrayRecord]]()
        for message in messages:
            client = self.admission.federation.client(message.metadata.dst_node_id)
            sent, group = content(server, client), groups.get(client)
            if group not in before or not _are_same(sent, before[group][0]):
                record = _record(sent, model, names, arrays)
                before[group] = sent, ArrayRecord({**record, **prior}) if prior else record
            said = {**message.content.config_records[self.configrecord_key], **own}
            said |= self.memory.entries(client, prior is not None)
            message.content = RecordDict({self.configrecord_key: ConfigRecord(said)})
            message.content[self.arrayrecord_key] = before[group][1]

    def _told(self) -> dict[str, Any]:
        """Return the parameters for the clients; those without a value are left out."""
        own = asdict(self.method)  # type: ignore[call-overload]
        return {name: value for name, value in own.items() if value is not None}

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

    def _withstands(self, replies: int) -> bool:
        """Return whether the aggregate of so many replies limits the influence of a single one."""
        return False

    def _reply_like(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return a record with the keys, shapes and dtypes of a sound reply of the method."""
        names = names_of(arrays.keys(), self.convention)
        model = names.read(arrays)
        return _record(self.method.reply_like(model), model, names, arrays)

    def _form(self, arrays: ArrayRecord) -> Form:
        """Return what replies to these arrays are compared with."""
        return Form(arrays, self._reply_like(arrays), self.convention)

    def _commit(
        self, reference: ArrayRecord, aggregate: ArrayRecord, admitted: Sequence[Message]
    ) -> ArrayRecord:
        """Keep the state of a round that counts; return its global arrays."""
        self.pace.commit(admitted)
        self.memory.commit(map(self.admission.client, admitted), self.admission.round)
        return aggregate

    def _aggregate(self, sent: ArrayRecord, replies: Sequence[Reply]) -> ArrayRecord:
        """Return the global arrays that the method makes of admitted replies.

        A SettingError skips the round.
        """
        names, blanks = names_of(sent.keys(), self.convention), Blanks()
        server, memory = self._server(names.read(sent), blanks), self.memory
        doubt = self.admission.federation.doubt
        try:
            if doubt and (
                said := next(filter(None, (doubt(server, each) for each in replies)), "")
            ):
                raise ValueError(said)
            result, memory.pending = self.pace.aggregate(self.method, server, replies)
        except (ArithmeticError, torch.linalg.LinAlgError) as error:
            raise ValueError(f"{self.method.name} cannot compute with it: {error}") from error
        self.method.check_state(result, memory.pending)
        tensors = dict(result)
        del result  # now only the dictionary refers to what lies in blanks
        return names.write(tensors, sent, blanks)

    def _server(self, model: Mapping[str, Tensor], blanks: Blanks) -> Server:
        told, counted = self.admission.federation.entries(), self.admission.max_weight_ratio is None
        number = self.admission.round
        return Server(
            model,
            self.memory.state,
            number,
            derive_seed(self._seed, "server", number),
            self._bench,
            blanks.empty,
            examples=int(told.get(EXAMPLES_KEY, 0)) if counted else 0,
            clients=int(told.get(CLIENTS_KEY, self._nodes)),
            counted=counted,
            warn=lambda line: log(WARNING, "Round %d: %s", number, line),
        )


def parameters_of(kind: type[Method]) -> list[Parameter]:
    """Return the parameters of a method as keyword arguments."""
    return [
        Parameter(p.name, Parameter.KEYWORD_ONLY, default=p.default, annotation=p.type)
        for p in fields(kind)  # type: ignore[arg-type]
    ]


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
