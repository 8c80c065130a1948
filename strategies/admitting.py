"""Flower's FedAvg with a gate: admitted replies, their weights, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedbary.aggregation.bound import check_ratio

from .admission import metric_refusals
from .asking import AskingStrategy
from .conventions import CONVENTIONS
from .gate import Refusal, ReplyGate, Terms
from .listener import Listener
from .weights import Limit


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
