"""Classification at a client: fit the global posterior to the local images, reply; evaluate.

Data set, split and network are cached per process by `fedbary.federation` and here, so a Ray actor
makes them once and serves every client from them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from torch import nn
from torch.nn import functional

from client_app.node import Node, config_of, round_of
from fedbary.federation import Shard, augments, evaluation_data, make_model, site_shard
from fedbary.metrics import evaluate as score
from fedbary.predictive import predict
from fedbary.seeds import derive_seed
from fedbary.task import Task
from strategies.client import reply_of

torch.backends.cudnn.deterministic = True

_model = lru_cache(maxsize=2)(make_model)


def query(message: Message, node: Node) -> Message:
    """Say which data this node holds, how much it trains on, and how many of each class."""
    job = _job(message, node)
    labels = torch.cat([job.shard.y, job.shard.y_held_out])
    site = node.site
    reply = MetricRecord(
        {
            "partition-id": -1 if site.partition is None else site.partition,
            "num-partitions": site.partitions,
            "num-examples": len(job.shard.y),
            "label-counts": torch.bincount(labels, minlength=len(job.task.classes)).tolist(),
        }
    )
    named = ConfigRecord({"name": site.name})
    return Message(RecordDict({"metrics": reply, "site": named}), reply_to=message)


def train(message: Message, node: Node) -> Message:
    """Fit the global posterior to the site's data and reply with the site's posterior."""
    job = _job(message, node)
    settings, site, shard, server_round = node.settings, node.site, job.shard, round_of(message)
    model = _model(settings, job.task)
    augment = settings.augment is True if site.partition is None else augments(settings)
    seed = derive_seed(settings.seed, "train", site.key, server_round)
    nll = functional.cross_entropy
    start = time.perf_counter()
    fitted = node.fit(message, model, shard.x, shard.y, nll, seed, augment)
    metrics: dict[str, int | float] = {
        "num-examples": len(shard.y),
        "train-seconds": time.perf_counter() - start,
    }
    if settings.measures_clients(server_round) and site.partition is not None:
        x, y = evaluation_data(settings)
        for name, value in _score(model, x, y, job, server_round).items():
            metrics[f"local-{name}"] = value
    return reply_of(message, fitted, metrics)


def evaluate(message: Message, node: Node) -> Message:
    """Score the global posterior on the examples that the site holds out."""
    job = _job(message, node)
    model = _received(message, job)
    x, y = job.shard.x_held_out, job.shard.y_held_out
    scores = _score(model, x, y, job, round_of(message))
    metrics = MetricRecord({"num-examples": len(y), **scores})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@dataclass(frozen=True, eq=False)
class Job:
    """What a message asks of this node: the task that its data fit, and its data."""

    node: Node
    task: Task
    shard: Shard


def _job(message: Message, node: Node) -> Job:
    task = Task.from_config(config_of(message))  # type: ignore[arg-type]
    return Job(node, task, site_shard(node.settings, node.site, task))


def _received(message: Message, job: Job) -> nn.Module:
    """Return the process's network, holding the posterior that the message carries."""
    model = _model(job.node.settings, job.task)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return model


def _score(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, job: Job, server_round: int
) -> dict[str, float]:
    device = next(model.parameters()).device
    settings = job.node.settings
    seed = derive_seed(settings.seed, "predict", job.node.site.key, server_round)
    generator = torch.Generator(device).manual_seed(seed)
    prediction = predict(model, x, settings.samples, generator)
    return score(prediction.probs, y, settings.ece_bins)
