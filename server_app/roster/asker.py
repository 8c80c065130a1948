"""The questions of a task, put to the sites; see `fedbary.tasks.Dialogue`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedbary.server_app.roster.roster import Roster
from fedbary.strategies.internals import log
from fedbary.strategies.wire import numbers_of
from fedbary.tasks import Dialogue, Question
from fedbary.texts import SCREEN, one_line, shown

_Found = TypeVar("_Found")


class Asker:
    """Puts questions to nodes.

    Parameters
    ----------
    grid, roster
        The federation and its members.
    timeout
        Seconds to wait for an answer.
    kind
        Type of the messages.

    Attributes
    ----------
    cautions : list of str
        The lines so far on sites that differ from the others.
    """

    def __init__(
        self, grid: Grid, roster: Roster, timeout: float, kind: str = f"{MessageType.QUERY}.ask"
    ) -> None:
        self._grid = grid
        self._roster = roster
        self._timeout = timeout
        self._kind = kind
        self.cautions: list[str] = []

    def hold(
        self, dialogue: Dialogue[_Found], nodes: Sequence[int], config: Mapping[str, Any]
    ) -> _Found:
        """Hold a dialogue with nodes and return its finding; `config` goes with each question."""
        try:
            question = next(dialogue)
            while True:
                answers = self.answers(question, nodes, config)
                nodes = list(answers)
                self._compare(question, answers)
                question = dialogue.send(list(answers.values()))
        except StopIteration as end:
            found: _Found = end.value
            return found

    def _compare(self, question: Question, answers: Mapping[int, Any]) -> None:
        """Log and keep the lines on sites that differ from the others."""
        named = {self._roster.name(node) or f"node {node}": read for node, read in answers.items()}
        for line in question.beside(named):
            self.cautions.append(one_line(line, SCREEN))
            log(WARNING, "%s", self.cautions[-1])

    def answers(
        self, question: Question, nodes: Sequence[int], config: Mapping[str, Any]
    ) -> dict[int, Any]:
        """Return the readable answers, by node, in an order that content alone sets.

        Nodes are not trusted: errors and invalid answers are left out. `config` goes with the
        question.
        """
        tensors = {"tensors": ArrayRecord({**question.tensors})} if question.tensors else {}
        asked = {**config, **question.config, "question": question.name}
        messages = [
            Message(
                RecordDict({"config": ConfigRecord({**asked, **own, "place": place}), **tensors}),
                node,
                self._kind,
            )
            for place, node in enumerate(nodes)
            for own in [question.own.get(self._roster.name(node) or "", {})]
        ]
        found = []
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            node = reply.metadata.src_node_id
            if reply.has_error():
                continue
            self._roster.heard(node, numbers_of(reply.content))
            try:
                words = reply.content.config_records.get("site", ConfigRecord())
                metrics = {**reply.content.metric_records["metrics"], **words}
                read = question.read(metrics, self._roster.trained_on(node))
            except Exception as error:  # noqa: BLE001 - a stranger's numbers raise many kinds
                called, said = self._roster.called(node), f"{type(error).__name__}: {error}"
                log(
                    WARNING, "%s sent no %s and is left out: %s", called, question.name, shown(said)
                )
            else:
                found.append((repr(sorted(metrics.items())), node, read))
        return {node: read for _, node, read in sorted(found, key=lambda answer: answer[:2])}
