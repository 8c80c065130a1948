"""Rounds of admitted replies: their aggregate, and rounds that are skipped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedbary.aggregation.sums import under
from fedbary.aggregation.tensors import check_ratio
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.methods import Method, Reply, Tensors
from fedbary.methods._method import Inherited

from .arrays import Blanks
from .asking import AskingStrategy, Listener, question
from .conventions import CONVENTIONS, Convention, Names, check_arrays
from .gate import (
    LEAST,
    Limit,
    Refusal,
    ReplyGate,
    Tally,
    Terms,
    allowed_for,
    arrays_of,
    farness,
    farthest,
    first_sound,
    metric_refusals,
    spoilers,
    too_far,
    weight_of,
)
from .internals import ErrorCode, log
from .privacy import rounds_of_wrapper


class AdmittingStrategy(AskingStrategy):
    """Flower's FedAvg with a gate for replies, and means of the admitted evaluations.

    Parameters
    ----------
    *args, **kwargs
        Arguments of `AskingStrategy`, and so of `flwr.serverapp.strategy.FedAvg`, in its order.
    max_weight_ratio : float, optional
        Largest ratio of a reply's weight to the round's median weight, 1 or more, in training and
        in evaluation. A larger weight is reduced to it. None: no bound. A client that claims a
        million times the others' examples then decides the aggregate, except under a robust rule.
    train_limit, evaluate_limit : callable, optional
        Takes a node's id, and returns the largest weight of its reply, None if unknown. A larger
        weight is reduced to it, with a warning; a reply whose limit is 0 is refused.
    name_node : callable, optional
        Takes a node's id, and returns the name of its site, None if unknown. Refusals use the name,
        and a method identifies the site by it in all rounds. Without a name the id is used, which
        changes when a SuperNode without a registered key restarts.
    known_metrics : mapping of str to (float, float), optional
        Metrics that clients send as numbers, each with its least and its largest value. A reply
        with another value under one of these keys is left out of the metrics. Replies may hold
        other keys; `train_metrics_aggr_fn` and `evaluate_metrics_aggr_fn` should read these keys
        alone. None: the commonest set of keys is averaged; replies with others are left out.
    listener : Listener, optional
        Is given the replies whose metrics are averaged.

    Raises
    ------
    SettingError
        If an argument is out of its range.

    Attributes
    ----------
    admitted_nodes : list of int
        The nodes whose metrics the metric aggregation functions get, in that order; none in a
        skipped round.
    """

    convention = CONVENTIONS["fedbary"]
    """Rule that tells Gaussian arrays, and the unit of their scales."""

    def __init__(
        self,
        *args: Any,
        max_weight_ratio: float | None = None,
        train_limit: Limit | None = None,
        evaluate_limit: Limit | None = None,
        name_node: Callable[[int], str | None] | None = None,
        known_metrics: Mapping[str, tuple[float, float]] | None = None,
        listener: Listener | None = None,
        **kwargs: Any,
    ) -> None:
        takes = self._arguments()
        if unknown := sorted(kwargs.keys() - takes):
            name = type(self).__name__
            raise TypeError(f"{name} has no argument {unknown[0]!r}; it takes {', '.join(takes)}")
        super().__init__(*args, **kwargs)
        check_ratio(max_weight_ratio, "max_weight_ratio")
        self.max_weight_ratio = max_weight_ratio
        self.train_limit = train_limit
        self.evaluate_limit = evaluate_limit
        self.known_metrics = known_metrics
        self.listener = listener
        self.name_node = name_node
        self._gate = ReplyGate(name_node)
        self.admitted_nodes: list[int] = []

    @classmethod
    def _arguments(cls) -> list[str]:
        """Return the names of the arguments of the class and its bases, the bases' first."""
        return [
            name
            for base in cls.__mro__
            if "__init__" in vars(base)
            for name, each in signature(vars(base)["__init__"]).parameters.items()
            if name != "self" and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ]

    @property
    def refusals(self) -> list[Refusal]:
        """The replies that were left out: at most 100 a phase, and the last 10,000 in all."""
        return self._gate.refusals

    @property
    def unanswered(self) -> set[int]:
        """The nodes that were asked in the last round and did not reply."""
        return self._gate.unanswered

    def _name(self, reply: Message) -> str:
        """Return the name by which a method knows the client of a reply."""
        return self._named(reply.metadata.src_node_id)

    def _named(self, node_id: int) -> str:
        known = self.name_node(node_id) if self.name_node else None
        return known or str(node_id)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask nodes to evaluate."""
        messages = list(super().configure_evaluate(server_round, arrays, config, grid))
        self._gate.ask(messages)
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate the metrics of the admitted replies; None if there are none.

        A reply whose metrics cannot be averaged with the others' is refused too.
        """
        server_round += self.completed_rounds
        replies = list(replies)
        self._gate.hear(replies, "aggregate_evaluate")
        weighed = self._gate.evaluated(server_round, replies, self._terms(self.evaluate_limit))
        unusual = metric_refusals(weighed, self.known_metrics)
        admitted = self._gate.admitted(server_round, weighed, unusual, self.weighted_by_key)
        if not admitted:
            return None
        contents = [reply.content for reply in admitted]
        self.admitted_nodes = [reply.metadata.src_node_id for reply in admitted]
        if self.listener is not None:
            self.listener.evaluated(dict(zip(self.admitted_nodes, contents, strict=True)))
        return self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)

    def _terms(
        self,
        limit: Limit | None,
        others: Sequence[float] = (),
    ) -> Terms:
        ratio = self.max_weight_ratio
        return Terms(self.convention, self.weighted_by_key, limit, ratio, others)


SKIPPED_KEY = "skipped"
"""The metric, 1, of a skipped round, whose global arrays stay as they were."""


class GatedStrategy(AdmittingStrategy, ABC):
    """Flower's FedAvg that admits replies and leaves the aggregate to a subclass.

    `strategies.gate` finds bad replies: unsound ones, those too far from the sent arrays, and those
    that spoil the aggregate. Bad replies never stop a run: they are left out, logged and kept in
    `refusals`. The aggregate does not depend on the order of the
    replies.

    Parameters
    ----------
    *args, **kwargs
        Arguments of `AdmittingStrategy`, and so of `flwr.serverapp.strategy.FedAvg`, in its order.
    min_replies : int
        With fewer admitted training replies the round is skipped: the global arrays stay as they
        were, and the train metrics are ``{"skipped": 1}``.
    max_skipped : int or None
        Skipped rounds in a row after which the next ends the run with a RunError. None: never.

    Raises
    ------
    SettingError
        If an argument is out of its range.

    Attributes
    ----------
    contributors : list of int
        The nodes whose replies were aggregated in the last round that counted, in that order; empty
        before the first round of this start.
    """

    def __init__(
        self, *args: Any, min_replies: int = 1, max_skipped: int | None = 3, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(min_replies, int) or min_replies < 1:
            raise SettingError("min_replies", min_replies, "1 or more")
        self.min_replies = min_replies
        self.max_skipped = max_skipped
        self.num_admitted = 0
        self.contributors: list[int] = []
        self._tally = Tally(max_skipped)
        self._global_arrays: ArrayRecord | None = None

    @abstractmethod
    def _check_global(self, arrays: ArrayRecord) -> None:
        """Raise a SettingError if the arrays to send do not fit."""

    def _reply_like(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return a record with the keys, shapes and dtypes of a sound reply: the global arrays."""
        return arrays

    def _withstands(self, replies: int) -> bool:
        """Return whether the aggregate of so many replies limits the influence of a single one."""
        return False

    @abstractmethod
    def _aggregate(self, sent: ArrayRecord, replies: Sequence[Reply]) -> ArrayRecord:
        """Return the aggregate of admitted replies; a SettingError skips the round."""

    @abstractmethod
    def _commit(
        self, reference: ArrayRecord, aggregate: ArrayRecord, admitted: Sequence[Message]
    ) -> ArrayRecord:
        """Return the new global arrays of a round that counts, and keep the state."""

    @property
    def counted(self) -> int:
        """Number of rounds that gave an aggregate, earlier starts included."""
        return self._tally.counted

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a resume after the last whole round, beside the global arrays."""
        return self._tally.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Take a state that `state_dict` returned after so many rounds.

        `start`, given that round's global arrays and the number of remaining rounds, then continues
        as if there had been no interruption.
        """
        self.completed_rounds = completed_rounds
        self._tally.load_state_dict(state, completed_rounds)

    def summary(self) -> None:
        """Log the least number of replies and the bound on weights, then FedAvg's settings."""
        log(INFO, "\t├──> Admission:")
        if self.max_weight_ratio is not None:
            log(INFO, "\t│\t├──Maximum weight: %g × the median", self.max_weight_ratio)
        log(INFO, "\t│\t└──Minimum replies: %d", self.min_replies)
        super().summary()

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the rounds as `flwr.serverapp.strategy.Strategy.start` does, with its arguments.

        Raises
        ------
        RunError
            If `max_skipped` rounds in a row were skipped, or every round was.
        """
        result = self._loop(*args, **kwargs)
        self._tally.end()
        return result

    def _loop(self, *args: Any, **kwargs: Any) -> Result:
        """Run Flower's loop of rounds."""
        return super().start(*args, **kwargs)

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
        if server_round == 1 and not self.completed_rounds:
            self._tally = Tally(self.max_skipped)
        self._tally.begin()
        self._global_arrays = arrays
        self._check_global(arrays)
        asked = list(super().configure_train(server_round, arrays, config, grid))
        if server_round == 1:
            self._require_enough(len(asked))
        messages = self._prepared(server_round + self.completed_rounds, asked, arrays)
        self._gate.ask(messages, anew=True)
        if self.listener is not None:
            self.listener.asked([message.content for message in messages])
        return messages

    def _require_enough(self, asked: int) -> None:
        """Refuse more needed replies than Flower asks clients; chosen nodes may come later."""
        if self.choose_nodes is None and asked < self.min_replies:
            allowed = f"at most {asked}, the clients that are asked in a round"
            raise SettingError("min_replies", self.min_replies, allowed)

    def _prepared(
        self, server_round: int, messages: list[Message], arrays: ArrayRecord
    ) -> list[Message]:
        """Return the round's messages as they are sent; a subclass may add to them."""
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask nodes to evaluate; end a run that a wrapper drives.

        Flower's wrappers for differential privacy do not call `start`, nor `aggregate_train` if
        they find no sound reply.

        Raises
        ------
        RunError
            If it is a wrapper's last round, and every round was skipped.
        """
        if self._tally.is_open:
            self._skip(server_round + self.completed_rounds, "no replies were handed on")
        messages = super().configure_evaluate(server_round, arrays, config, grid)
        if server_round == rounds_of_wrapper():
            self._tally.end()
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
        """
        server_round += self.completed_rounds
        replies = list(replies)
        self._gate.hear(replies, "aggregate_train")
        self.admitted_nodes = []
        terms = self._terms(self.train_limit, self._others())
        reference = self._global_arrays
        if reference is None:
            reference = first_sound(replies, terms)
        expected = self._reply_like(reference)
        admitted = self._gate.trained(server_round, replies, expected, terms)
        if not admitted:
            failed = (
                self._could_not_train(reply, server_round, expected, terms) for reply in replies
            )
            self._tally.fail(failed)
        return self._aggregate_admitted(server_round, admitted, reference)

    def _aggregate_admitted(
        self, server_round: int, admitted: list[Message], reference: ArrayRecord
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate admitted replies; refuse those that spoil the aggregate, and leave them out."""
        self.num_admitted = len(admitted)
        if len(admitted) < self.min_replies:
            few = f"{len(admitted)} replies admitted, {self.min_replies} needed"
            return self._skip(server_round, few)

        expected = self._reply_like(reference)
        records = [arrays_of(reply) for reply in admitted]
        scales = self.convention.pairs(reference.keys()).values()
        sent = (expected.keys() & reference.keys()) - set(scales)
        weights_far = farness(records, expected, sent)
        others_far = farness(records, expected, expected.keys() - sent)
        if len(admitted) >= LEAST and not self._withstands(len(admitted)):
            reasons = list(map(too_far, weights_far, others_far))
            if any(reasons):
                rest = self._gate.admitted(server_round, admitted, reasons, self.weighted_by_key)
                return self._aggregate_admitted(server_round, rest, reference)

        sent_now = records[0] if self._global_arrays is None else self._global_arrays
        names = Names(records[0].keys(), self.convention)
        replies = [
            Reply(self._name(reply), weight_of(reply, self.weighted_by_key), names.read(record))
            for reply, record in zip(admitted, records, strict=True)
        ]

        def attempt(some: Sequence[int]) -> ArrayRecord:
            arrays = self._aggregate(sent_now, [replies[k] for k in some])
            check_arrays(arrays, reference, self.convention)
            return arrays

        everybody = range(len(replies))
        try:
            arrays = attempt(everybody)
        except SettingError as error:
            return self._skip(server_round, str(error))
        except ValueError:
            reasons = spoilers(everybody, attempt, lambda k: farthest(records[k], expected))
            rest = self._gate.admitted(server_round, admitted, reasons, self.weighted_by_key)
            return self._aggregate_admitted(server_round, rest, reference)
        arrays = self._commit(reference, arrays, admitted)
        self.contributors = [reply.metadata.src_node_id for reply in admitted]
        far = map(allowed_for, weights_far, others_far)
        self._tally.count(server_round, {r.client: t for r, t in zip(replies, far, strict=True)})
        left_out = metric_refusals(admitted, self.known_metrics)
        self._gate.said(server_round, "metrics left out", admitted, left_out)
        usual = [k for k, why in enumerate(left_out) if why is None]
        self.admitted_nodes = [self.contributors[k] for k in usual]
        contents = [admitted[k].content for k in usual]
        if self.listener is not None:
            heard = dict(zip(self.admitted_nodes, contents, strict=True))
            self.listener.trained(heard, [replies[k].tensors for k in usual])
        return arrays, self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def _skip(self, server_round: int, reason: str) -> tuple[None, MetricRecord]:
        self._tally.skip(server_round, reason)
        return None, MetricRecord({SKIPPED_KEY: 1})

    def _others(self) -> Sequence[float]:
        """Return weights of earlier replies, with which those of this round are compared too."""
        return ()

    def _could_not_train(
        self, reply: Message, server_round: int, expected: ArrayRecord, terms: Terms
    ) -> bool:
        """Return whether a refused reply shows that its client could not train in this round.

        It does if the client raised an error, or if its content is unsound. Errors of Flower and
        late replies do not.
        """
        if reply.has_error():
            return reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        late = reply.metadata.group_id not in ("", question(MessageType.TRAIN, server_round))
        return not late and terms.refusal(reply, expected) is not None


PRIOR = "prior/"
"""Prefix of the keys of the prior's arrays in a training message."""

STATE = "method."
"""Prefix of the names of a method's state in a strategy's state."""


class InheritingStrategy(GatedStrategy, ABC):
    """A strategy that may begin with what an earlier run has left.

    Parameters
    ----------
    *args, **kwargs
        Those of `GatedStrategy`.
    prior_arrays : ArrayRecord, optional
        A posterior in the global arrays' names: clients use it as the prior in every round. Its
        Gaussian arrays are part of each training message. None: clients have their own prior.
    """

    method: Method
    convention: Convention

    def __init__(self, *args: Any, prior_arrays: ArrayRecord | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prior_arrays = prior_arrays
        self._inherited: Tensors | None = None
        self._state: Mapping[str, Tensor] = {}

    @property
    def groups(self) -> Mapping[str, str]:
        """Each client's group by its name; empty for methods without groups."""
        return self.method.groups_of(self._state)

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
        names = Names(arrays.keys(), self.convention)
        held = names.read(arrays)
        inherited = Inherited(Posterior.from_state_dict(held), under(STATE, state))
        model, first = self.method.inherit(held, inherited)
        started = names.write(dict(model), arrays, Blanks())
        self.begin(started, first)
        return started

    def begin(self, arrays: ArrayRecord, state: Tensors) -> None:
        """Begin with these arrays and this state of the method; a ValueError if one is unsound."""
        check_arrays(arrays, arrays, self.convention)
        self.method.check_state(Names(arrays.keys(), self.convention).read(arrays), state)
        self._state = self._inherited = state

    def _first_state(self, model: Tensors) -> Tensors:
        """Return the method's state before the first round."""
        return self.method.start(model) if not self._inherited else self._inherited

    def _with_prior(self, messages: list[Message], arrays: ArrayRecord) -> list[Message]:
        """Add the prior to messages; those that share a record share the new one."""
        assert self.prior_arrays is not None
        pairs = self.convention.pairs(arrays.keys())
        keys = sorted({*pairs, *pairs.values()})
        prior = ArrayRecord(
            {key: self.prior_arrays[key] for key in keys if key in self.prior_arrays}
        )
        try:
            check_arrays(prior, ArrayRecord({key: arrays[key] for key in keys}), self.convention)
        except ValueError as error:
            raise SettingError("prior_arrays", error, "the global arrays' Gaussians") from None
        made: dict[int, ArrayRecord] = {}
        for message in messages:
            record = message.content.array_records[self.arrayrecord_key]
            if id(record) not in made:
                added = {PRIOR + key: array for key, array in prior.items()}
                made[id(record)] = ArrayRecord({**record, **added})
            held = {**message.content, self.arrayrecord_key: made[id(record)]}
            message.content = RecordDict(held)
        return messages
