"""The Flower ClientApp: receive the global posterior, fit it to the local data, reply; evaluate.

The app keeps nothing of a run in itself. Data set, split and network are cached per process by
`fedbary.federation` and here, so a Ray actor makes them once and serves every client from them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedbary import Posterior
from fedbary.attacks import ATTACKS, hostile_clients
from fedbary.config import Settings, resolve_run_config
from fedbary.federation import Shard, augments, evaluation_data, make_model, site_shard
from fedbary.inference import Training, local_method
from fedbary.metrics import evaluate as score
from fedbary.models import BayesianCNN
from fedbary.prediction import predict
from fedbary.seeds import derive_seed
from fedbary.sites import Site, site_from
from fedbary.task import Task

torch.backends.cudnn.deterministic = True

app = ClientApp()

_model = lru_cache(maxsize=2)(make_model)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which data this node holds, how much it trains on, and how many of each class."""
    job = _job(message, context)
    labels = torch.cat([job.shard.y, job.shard.y_held_out])
    site = job.site
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


@app.train()
def train(message: Message, context: Context) -> Message:
    """Fit the global posterior to the site's data and reply with the site's posterior."""
    job = _job(message, context)
    settings, shard, server_round = job.settings, job.shard, _round(message)
    model = _received(message, job)
    prior: Posterior | float = settings.prior_std
    if settings.prior == "global" and server_round > 1:
        prior = Posterior.from_state_dict({k: v.clone() for k, v in model.state_dict().items()})
    training = Training(
        epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        lr=settings.lr_of(server_round),
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        log_var_lr=settings.log_var_lr,
        kl_weight=settings.kl_weight,
    )
    start = time.perf_counter()
    fitted = local_method(settings.inference)(
        model,
        shard.x,
        shard.y,
        prior,
        training,
        derive_seed(settings.seed, "train", job.site.key, server_round),
        augment=settings.augment is True if job.site.partition is None else augments(settings),
    )
    metrics: dict[str, int | float] = {
        "num-examples": len(shard.y),
        "train-seconds": time.perf_counter() - start,
        "train-nll": fitted["train_nll"],
        "kl": fitted["kl"],
    }
    if settings.measures_clients(server_round) and job.site.partition is not None:
        x, y = evaluation_data(settings)
        for name, value in _score(model, x, y, job, server_round).items():
            metrics[f"local-{name}"] = value
    arrays = ArrayRecord(_sent(model, message, job))
    reply = RecordDict({"arrays": arrays, "metrics": MetricRecord({**metrics})})
    return Message(reply, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score the global posterior on the examples that the site holds out."""
    job = _job(message, context)
    model = _received(message, job)
    x, y = job.shard.x_held_out, job.shard.y_held_out
    scores = _score(model, x, y, job, _round(message))
    metrics = MetricRecord({"num-examples": len(y), **scores})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@dataclass(frozen=True, eq=False)
class Job:
    """What a message asks of this node: the run's settings and task, its site and its data."""

    settings: Settings
    task: Task
    site: Site
    shard: Shard


def _job(message: Message, context: Context) -> Job:
    settings = _resolve(tuple(sorted(context.run_config.items())))
    site = site_from(context.node_config)
    if site.partition is not None and site.data_path:
        settings = settings.model_copy(update={"data_dir": site.data_path})
    torch.set_num_threads(site.cpus or settings.cpus_per_client)
    task = Task.from_config(_config(message))  # type: ignore[arg-type]
    return Job(settings, task, site, site_shard(settings, site, task))


@lru_cache(maxsize=4)
def _resolve(run_config: tuple[tuple[str, str | int | float | bool], ...]) -> Settings:
    return resolve_run_config(dict(run_config))


def _config(message: Message) -> ConfigRecord:
    return message.content.config_records["config"]


def _round(message: Message) -> int:
    return int(_config(message)["server-round"])  # type: ignore[arg-type]


def _received(message: Message, job: Job) -> BayesianCNN:
    """Return the process's network, holding the posterior that the message carries."""
    model = _model(job.settings, job.task)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return model


def _sent(model: BayesianCNN, message: Message, job: Job) -> dict[str, torch.Tensor]:
    """Return the state that the client sends: the fitted one, or what its attack makes of it.

    A site with data of its own never attacks, whatever the settings say.
    """
    fitted, settings, site = model.state_dict(), job.settings, job.site
    hostile = hostile_clients(settings.hostile_fraction, site.partitions, settings.seed)
    if settings.attack == "none" or site.partition not in hostile:
        return fitted
    received = message.content.array_records["arrays"].to_torch_state_dict()
    posteriors = [
        Posterior.from_state_dict({key: tensor.cpu() for key, tensor in state.items()})
        for state in (received, fitted)
    ]
    return ATTACKS[settings.attack](*posteriors).state_dict()


def _score(
    model: BayesianCNN, x: torch.Tensor, y: torch.Tensor, job: Job, server_round: int
) -> dict[str, float]:
    device = next(model.parameters()).device
    seed = derive_seed(job.settings.seed, "predict", job.site.key, server_round)
    generator = torch.Generator(device).manual_seed(seed)
    prediction = predict(model, x, job.settings.samples, generator)
    return score(prediction.probs, y, job.settings.ece_bins)
