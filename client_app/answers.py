"""What a client answers: its data, a round of training, and scores, in any task.

Nothing is kept of a run. Data sets, splits and networks are cached per process, so that a Ray actor
makes them once for all its clients.
"""

from __future__ import annotations

import time
from functools import lru_cache
from logging import INFO

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import nn

from client_app.calibration import answer_of_held_out, kinds_told
from client_app.discretion import Withheld, discretion
from client_app.job import job_of
from client_app.scoring import evaluation_scores, scoring_seed
from fedbary.errors import SettingError
from fedbary.predictive.conformal import QUESTION, SIZES
from fedbary.runs.data_kept import require_same_site
from fedbary.runs.ending import spare_imports
from fedbary.settings.config import Settings
from fedbary.tasks import Signature, Tested, task_of
from strategies.answering import Request
from strategies.compression import compression
from strategies.internals import ClientAppCallable, log

torch.backends.cudnn.deterministic = True
spare_imports()


def guarded(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a message through the gates: discretion, then compression."""

    def packed(message: Message, context: Context) -> Message:
        return compression(message, context, call_next)

    return discretion(message, context, packed)


def query(message: Message, context: Context) -> Message:
    """Answer with this node's data, and its numbers of examples and of each class."""
    job = job_of(message, context)
    site = job.node.site
    for note in job.task.site_notes(site, job.signature):
        log(INFO, "%s", note)
    if site.partition is None and job.node.keeps_in is None:
        log(INFO, "no state-path: the site does not check whether its data change within a run")
    reply = MetricRecord(
        {
            "partition-id": -1 if site.partition is None else site.partition,
            "num-partitions": site.partitions,
            "num-examples": len(job.shard.y),
            "num-held-out": len(job.shard.y_held_out),
            "label-counts": job.task.label_counts(job.shard, job.signature),
        }
    )
    named = ConfigRecord({"name": site.name})
    return Message(RecordDict({"metrics": reply, "site": named}), reply_to=message)


def ask(message: Message, context: Context) -> Message:
    """Answer a question of the task about the site's data."""
    job, config = job_of(message, context), message.content.config_records["config"]
    question, withheld = str(config["question"]), job.node.site.withheld
    if "answers" in withheld or kinds_told(job, question) & withheld:
        raise Withheld(f"this site withholds its answer about {question}")
    tensors = message.content.array_records.get("tensors")
    told = tensors.to_torch_state_dict() if tensors is not None else {}
    if question in (QUESTION, SIZES):
        model = _model(job.node.settings, job.signature)
        answer = answer_of_held_out(job, model, config, told)
    else:
        answer = job.task.answer(question, job.shard, config, told)
    return Message(RecordDict({"metrics": MetricRecord(answer)}), reply_to=message)


def train(message: Message, context: Context) -> Message:
    """Fit the global model to the site's data and reply with the result."""
    job = job_of(message, context)
    node, task, shard = job.node, job.task, job.shard
    request = Request.read(message, node.keeps_in)
    node.remember_releases()
    if node.site.partition is None and node.keeps_in is not None:
        require_same_site(node.keeps_in, job.held, request.round)
    model = _model(node.settings, job.signature)
    again = [node.settings.replicate] if node.settings.replicate else []
    seed = task.seed("train", node.site.key, request.round, *again)
    start = time.perf_counter()
    fitted = job.client(request, model).fit(request, seed)
    if not all(tensor.isfinite().all() for tensor in model.state_dict().values()):
        allowed = "perhaps a smaller value: training diverged, and weights are not finite"
        raise SettingError("lr", getattr(node.settings, "lr", "none"), allowed)
    metrics: dict[str, int | float] = {
        "num-examples": len(shard.y),
        "train-seconds": time.perf_counter() - start,
    }
    if node.settings.measures_clients(request.round) and node.site.partition is not None:
        scored = task.scored_by_clients(job.facts)
        if scored is not None:
            on, seed = Tested(*scored), scoring_seed(job, request.round)
            found = task.client_scores(model, on, job.facts, seed)
            metrics |= {f"local-{name}": value for name, value in found.items()}
    return request.reply(node.attacked(fitted, request.received), metrics)


def evaluate(message: Message, context: Context) -> Message:
    """Score the global model on the site's holdout, and the site's own model."""
    job = job_of(message, context)
    request = Request.read(message, job.node.keeps_in)
    scores = evaluation_scores(job, request, _model(job.node.settings, job.signature))
    metrics = MetricRecord({"num-examples": len(job.shard.y_held_out), **scores})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@lru_cache(maxsize=2)
def _model(settings: Settings, signature: Signature) -> nn.Module:
    return task_of(settings).make_model(signature)
