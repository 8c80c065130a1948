"""Results of every round: collected, logged and written to the run folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import MetricRecord, RecordDict
from torch import Tensor

from fedbary.aggregation.sums import PIECE
from fedbary.figures.courses import courses
from fedbary.figures.run_pictures import named_classes, partition_heatmap
from fedbary.figures.spared import spared
from fedbary.gaussian import MEAN_SUFFIX, Posterior, gaussian_pairs
from fedbary.methods import Tensors
from fedbary.predictive import Predictive
from fedbary.runs import schema
from fedbary.runs.failing import advised, turn, verdict
from fedbary.runs.run_folder import BACKGROUND, LAST, NETWORKS, RunFolder
from fedbary.runs.schema import validation_score
from fedbary.runs.tracking import Tracking
from fedbary.server_app.roster.roster import Roster
from fedbary.settings.config import Settings
from fedbary.strategies import MethodStrategy
from fedbary.strategies.arrays import bytes_of
from fedbary.strategies.internals import log
from fedbary.tasks import ClientMetrics, Outcome, Scored, Task, task_of
from fedbary.tasks._rows import Rows
from fedbary.variational.frozen import frozen_tensors

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def means_of(known: Collection[str]) -> Callable[[list[RecordDict], str], MetricRecord]:
    """Return the function that takes the weighted mean of each known metric.

    It is over the replies that hold the metric; the weight itself is not averaged.
    """

    def means(replies: list[RecordDict], weight_key: str) -> MetricRecord:
        told = [next(iter(reply.metric_records.values())) for reply in replies]
        found = MetricRecord()
        for key in sorted(set(known) - {weight_key}):
            pairs = [(float(m[weight_key]), float(m[key])) for m in told if key in m]  # type: ignore[arg-type]
            if total := sum(weight for weight, _ in pairs):
                found[key] = sum(weight / total * value for weight, value in pairs)
        return found

    return means


def log_var_spread(clients: Sequence[Tensors]) -> dict[str, float]:
    """Return the spread of the clients' log-variances, per tensor, in nats.

    It is their standard deviation over the clients, averaged over the weights; empty without
    Gaussians or with one client.
    """
    if len(clients) < 2:
        return {}
    return {
        mean.removesuffix(MEAN_SUFFIX): _mean_std([each[key].reshape(-1) for each in clients])
        for mean, key in gaussian_pairs(clients[0].keys()).items()
        if clients[0][key].numel()
    }


def _mean_std(clients: Sequence[Tensor]) -> float:
    """Return the clients' standard deviation, averaged over weights, computed in pieces."""
    pieces = zip(*(values.split(PIECE) for values in clients), strict=True)
    total = sum(float(torch.stack(piece).std(0).sum()) for piece in pieces)
    return total / clients[0].numel()


WEIGHT = "num-examples"


def by_group(groups: Mapping[str, str], held_out: Sequence[ClientMetrics]) -> dict[str, Any]:
    """Return the line's entry on groups: their sites, and their clients' mean scores.

    A mean is weighted by held-out examples, over the clients of the group that tell the score.

    Parameters
    ----------
    groups : mapping of str to str
        Each client's group by the site's name.
    held_out : sequence of mapping
        The clients' scores, `site` their name.
    """
    found: dict[str, Any] = {}
    for group in sorted({*groups.values()}):
        sites = [site for site, own in groups.items() if own == group]
        told = [client for client in held_out if client["site"] in sites]
        found[group] = {"sites": sites}
        for name in sorted({name for client in told for name in client} - {"site", WEIGHT}):
            pairs = [(c[WEIGHT], c[name]) for c in told if name in c]
            total = sum(weight for weight, _ in pairs)
            found[group][name] = sum(weight * value for weight, value in pairs) / total
        found[group][WEIGHT] = sum(client[WEIGHT] for client in told)
    return {schema.GROUPS: found} if found else {}


def draw_partition(
    results: RunFolder, label_counts: Mapping[str, Sequence[int]], classes: Sequence[str]
) -> None:
    """Draw each site's examples of each class; nothing if a site does not tell them."""
    if not all(label_counts.values()):
        return
    dealt = all(name == f"partition {part}" for part, name in enumerate(label_counts))
    with spared("partition.png", lambda line: log(WARNING, "%s", line)):
        counts = np.array(list(label_counts.values()))
        sites = [] if dealt else list(label_counts)
        results.draw(partition_heatmap(counts, sites, named_classes(classes)), "partition")


def draw(
    results: RunFolder, task: Task, facts: Mapping[str, Tensor], scored: Callable[[], Scored]
) -> None:
    """Draw the curves, the result's predictions and the clients' scores; a failure is a line.

    Parameters
    ----------
    results, task, facts
        The run's.
    scored
        Returns the scores of the result.
    """

    def curves() -> Iterable[tuple[str, Figure]]:
        yield "learning-curves", courses({"": [results.rounds]}, task.curves)

    def of_the_model() -> Iterable[tuple[str, Figure]]:
        prediction = scored().prediction
        return () if prediction is None else task.pictures(prediction, facts)

    def of_the_clients() -> Iterable[tuple[str, Figure]]:
        return task.pictures_of_clients(results.result)

    for pictures in (curves, of_the_model, of_the_clients):
        with spared("pictures", lambda line: log(WARNING, "%s", line)):
            for name, figure in pictures():
                results.draw(figure, name)


KNOWN: Mapping[str, tuple[float, float]] = {
    "num-examples": (0, math.inf),
    "train-seconds": (0, math.inf),
    "train-nll": (-math.inf, math.inf),
    "kl": (-math.inf, math.inf),
}
"""Recorded metrics of clients in every task, each with its least and largest value."""


class Recorder:
    """Collects each round's results and writes them as one line to the log and to the results.

    It is a strategy's listener: `asked` receives the messages, `trained` and `evaluated` the
    admitted replies. Then `record` writes the round.

    Parameters
    ----------
    settings, results, roster
        The run's.
    facts
        Facts that the task has learnt by asking.
    traffic
        Bytes of a message's arrays on the way, "down" and "up", if they are compressed.

    Attributes
    ----------
    model : nn.Module
        The network of the global arrays; at first it holds the initialisation.
    known_metrics : mapping of str to (float, float)
        Recorded metrics of a client, each with its least and its largest value.
    strategy : MethodStrategy
        The run's, to be set before the first round.
    cautions : sequence of str
        Lines on sites and columns that differ, to be set before the first round.
    unshared : set of str
        Names of the sites that do not share their own estimates, those of earlier runs among them.
    """

    strategy: MethodStrategy
    predictive: Predictive

    def __init__(
        self,
        settings: Settings,
        results: RunFolder,
        roster: Roster,
        facts: Mapping[str, Tensor],
        traffic: Mapping[str, float],
    ) -> None:
        self.settings = settings
        self.results = results
        self.roster = roster
        self.facts = facts
        self.traffic = traffic
        self.task = task_of(settings)
        self.model = self.task.make_model(self.task.signature())
        self.known_metrics = {**KNOWN, **self.task.known_metrics}
        self.last = Scored({})
        self.cautions: Sequence[str] = ()
        self.unshared = schema.unshared(results.rounds)
        self._trained: list[ClientMetrics] | None = None
        self._held_out: list[ClientMetrics] = []
        self._spread: dict[str, float] = {}
        self._bytes: dict[str, float] = {}
        self._tracking = Tracking(settings, results.path, lambda line: log(WARNING, "%s", line))
        for line in results.rounds:
            self._tracking.add_round(line)
        self._started = self._then = time.perf_counter()

    def take(self, arrays: Mapping[str, Tensor]) -> Predictive:
        """Hold a global model, and return its `predictive`, which is used from now on."""
        self._arrays = arrays
        self.model.load_state_dict({**arrays})
        self.predictive = self.strategy.predictive(self.model.state_dict())
        return self.predictive

    def asked(self, contents: Sequence[RecordDict]) -> None:
        """Take the size of a client's message."""
        self._bytes = {"down": _mean_bytes(contents)}

    def trained(self, replies: Mapping[int, RecordDict], tensors: Sequence[Tensors]) -> None:
        """Take each client's training metrics, and the spread of their variances."""
        self._trained = self._metrics(replies)
        self._bytes["up"] = _mean_bytes(list(replies.values()))
        self._spread = log_var_spread(tensors)

    def evaluated(self, replies: Mapping[int, RecordDict]) -> None:
        """Take the metrics of each client's evaluation."""
        self._held_out = self._metrics(replies)

    def record(self, server_round: int, told: Mapping[str, Any]) -> MetricRecord | None:
        """Score the global model, record the round and write the checkpoint.

        The model is the one taken last. On resume Flower first reports the starting arrays, whose
        round is on disk: they are scored and not recorded. `told` holds the answers to questions
        after the round.
        """
        is_known = server_round < len(self.results.rounds)
        told = {**told, **self._step()}
        outcome = self._outcome(
            server_round, self.results.rounds[server_round] if is_known else told
        )
        by, self.last = outcome.predictive, self.task.scores(outcome, self.facts)
        scores = self.last.scores
        now = time.perf_counter()
        seconds, self._then = now - self._then, now
        if is_known:
            return None
        if server_round == 0:
            self._started = now
        rounds_here = max(server_round - self.strategy.completed_rounds, 1)
        left = (now - self._started) / rounds_here * (self.settings.rounds - server_round)
        skipped = server_round > 0 and self._trained is None
        clients: dict[str, Any] = {}
        if self._trained is not None:
            clients = {
                schema.CLIENTS: self._trained,
                schema.LOG_VAR_SPREAD: self._spread,
                schema.BYTES: {**self._bytes, **self.traffic},
            }
        line = {
            schema.ROUND: server_round,
            **scores,
            schema.SECONDS: seconds,
            schema.LOG_VAR: {name: float(v.mean()) for name, v in by.posterior.log_var.items()},
            schema.SKIPPED: skipped,
            **self._replies(server_round),
            **clients,
            **self.task.summary(self._trained or [], self._held_out),
            **by_group(self.strategy.groups, self._held_out),
            **told,
            **({schema.MEMBERS: len(next(iter(by.members.values())))} if by.members else {}),
            **({schema.POOL: asdict(by.kind)} if by.kind else {}),
            **self.last.line,
            **({schema.CAUTIONS: self.cautions} if self.cautions and not server_round else {}),
        }
        dealt = not self.results.own_data
        line = {**advised(line, self.settings, self.results.rounds, dealt)}
        private = {m.name for m in self.roster.members if "estimate" not in m.shared}
        if isinstance(self.task, Rows) and (names := self.unshared | private):
            line[schema.UNSHARED] = sorted(names)
        self._trained, self._held_out = None, []
        self.results.add_round(line)
        self._tracking.add_round(self.results.rounds[-1])
        self.results.add_checkpoint(self._arrays, self.strategy.state_dict())
        log(
            INFO,
            "round %d/%d  %s  %.1f s  %s left%s",
            server_round,
            self.settings.rounds,
            self.task.said(scores),
            seconds,
            f"{left:.0f} s" if server_round else "?",
            "  skipped" if skipped else "",
        )
        if server_round < self.settings.rounds and (
            said := turn(self.results.rounds, self.settings.rounds)
        ):
            log(WARNING, "Round %d: %s", server_round, said)
        return MetricRecord({**scores})

    def _step(self) -> dict[str, float]:
        """Return the entry on the step of a round that trained, if the task draws it."""
        if self._trained is None or schema.STEP not in [name for name, *_ in self.task.curves]:
            return {}
        length = self.strategy.method.step_length(self._arrays, self.strategy.memory.state)
        return {} if length is None else {schema.STEP: length}

    def settle(self) -> None:
        """Take the model of the result, the last round's or the best."""
        if self.settings.keep_best != "none":
            self._take_best()

    def finish(self, told: Mapping[str, Tensor]) -> None:
        """Write the members' networks and the posterior of the result, then the pictures.

        `told` is what sites told after the last round.
        """
        if members := self.predictive.members:
            self.results.write_tensors(NETWORKS, members)
        if background := self.predictive.background:
            self.results.write_tensors(BACKGROUND, background.tensors())
        if told:
            self.results.write_tensors(LAST, told)
        whole = {**frozen_tensors(self.model), **self.predictive.posterior.state_dict()}
        self.results.finish(Posterior.from_state_dict(whole))
        if self.settings.pictures:
            draw(self.results, self.task, self.facts, self._scored)
        self._tracking.finish(self._export)
        if said := verdict(self.results.result):
            log(WARNING, "%s", said)
        is_last = self.results.result[schema.ROUND] == self.results.rounds[-1][schema.ROUND]
        for said_last in self.task.said_last(told, self.facts):
            log(INFO, "%s", said_last)
        for advice in self.task.advice(self.last, self.facts) if is_last else ():
            if "calibrate=" not in advice or "calibrate=" not in said:
                log(INFO, "%s", advice)

    def _export(self, place: Path) -> None:
        """Write the model to an empty folder, as `fedbary export` does."""
        from fedbary.report.exported import export_run
        from fedbary.report.judged import Goals
        from fedbary.trained import load

        export_run(load(self.results.path, own_code=True), place, Goals())

    def _scored(self) -> Scored:
        """Return the scores of the result; a best round's are made again."""
        line = self.results.result
        if line[schema.ROUND] == self.results.rounds[-1][schema.ROUND]:
            return self.last
        return self.task.scores(self._outcome(line[schema.ROUND], line), self.facts)

    def give_up(self, error: BaseException) -> None:
        """Tell the tracker that the run ends without a result."""
        self._tracking.stop(killed=not isinstance(error, Exception))

    def _take_best(self) -> None:
        """Name the best round, and go back to it."""
        line, score = self.results.result, self.settings.keep_best
        if line.get(schema.BEST_ROUND) is None:
            log(
                WARNING,
                "No round has a finite %s on validation data: the last round's model is kept",
                score,
            )
            return
        number, value = line[schema.ROUND], validation_score(self.settings, line)
        log(
            INFO,
            "Round %d is kept: its %s on validation data, %.4f, is the best",
            number,
            score,
            value,
        )
        if number == self.results.rounds[-1][schema.ROUND]:
            return
        checkpoint = self.results.checkpoint_of(number)
        self.strategy.load_state_dict(checkpoint.strategy, number)
        self.take(checkpoint.arrays)

    def _outcome(self, server_round: int, told: Mapping[str, Any]) -> Outcome:
        """Return the outcome of a round, to be scored."""
        known = all(held := self._label_counts())  # a site that withholds its metrics has none
        counts = [sum(of_class) for of_class in zip(*held, strict=True)] if known else []
        return Outcome(
            server_round,
            self.model,
            replace(self.predictive, noise_var=float(told.get(schema.NOISE_VAR, 0.0))),
            told,
            self._held_out,
            counts,
        )

    def _label_counts(self) -> list[list[int]]:
        return [member.label_counts for member in self.roster.members]

    def _replies(self, server_round: int) -> dict[str, Any]:
        """Return the number of admitted replies, the reasons of refusals, and silent clients."""
        if server_round == 0:
            return {}
        return {
            schema.ADMITTED: self.strategy.admission.num_admitted,
            schema.REFUSED: [
                refusal.reason
                for refusal in self.strategy.refusals
                if refusal.round == server_round
            ],
            schema.UNANSWERED: [
                self.roster.name(node) or self.roster.called(node)
                for node in sorted(self.strategy.unanswered)
            ],
        }

    def _metrics(self, replies: Mapping[int, RecordDict]) -> list[ClientMetrics]:
        """Return each reply's known metrics with its site's name, in the order of the members."""
        found = {node: next(iter(r.metric_records.values())) for node, r in replies.items()}
        return [
            {
                "site": member.name,
                **{k: v for k, v in found[member.node_id].items() if k in self.known_metrics},
            }
            for member in self.roster.members
            if member.node_id in found
        ]


def _mean_bytes(contents: Sequence[RecordDict]) -> float:
    """Return the mean size of messages' arrays, in bytes; NaN without messages."""
    return sum(map(bytes_of, contents)) / len(contents) if contents else math.nan
