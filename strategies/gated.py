"""Rounds of admitted replies: their aggregate, and rounds that are skipped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.methods import Reply

from .admission import arrays_of, metric_refusals
from .admitting import AdmittingStrategy
from .asking import question
from .culprits import farthest, spoilers
from .distances import LEAST, allowed_for, farness, too_far
from .gate import Terms, first_sound
from .internals import ErrorCode, log
from .names import Names
from .privacy import rounds_of_wrapper
from .soundness import check_arrays
from .tally import Tally
from .weights import weight_of

SKIPPED_KEY = "skipped"
"""The metric, 1, of a skipped round, whose global arrays stay as they were."""


class GatedStrategy(AdmittingStrategy, ABC):
    """Flower's FedAvg that admits replies and leaves the aggregate to a subclass.

    Three files find bad replies: `admission` finds unsound ones, `distances` those too far from the
    sent arrays, `culprits` those that spoil the aggregate. Bad replies never stop a run: they are
    left out, logged and kept in `refusals`. The aggregate does not depend on the order of the
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
