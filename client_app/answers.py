"""What a client answers: its data, a round of training, and scores, in any task.

Nothing is kept of a run. Data sets, splits and networks are cached per process, so that a Ray actor
makes them once for all its clients.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import lru_cache
from logging import INFO, WARNING
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from fedbary.client_app.discretion import AnswerRefused, discretion
from fedbary.client_app.limits import in_cells
from fedbary.client_app.node import Job, job_of
from fedbary.data.digest import checksum
from fedbary.errors import SettingError
from fedbary.methods import method_of
from fedbary.predictive import Predictive
from fedbary.predictive.conformal import QUESTION, SIZES
from fedbary.predictive.projection import STRENGTHS, projected
from fedbary.runs.commit import APP_KEY, app_digest
from fedbary.runs.data_kept import require_same_site
from fedbary.runs.ending import spare_imports
from fedbary.runs.provenance import versions
from fedbary.scores.coverage import moments
from fedbary.scores.metrics import label_share_weights
from fedbary.seeds import seed_of_draws
from fedbary.settings.config import Settings
from fedbary.settings.task_words import OfGuarantees
from fedbary.strategies.client import Request
from fedbary.strategies.compression import compression
from fedbary.strategies.internals import ClientAppCallable, log
from fedbary.tasks import LEAST, SHOWN, Signature, Tested, groups, held_out, hits_and_sizes, task_of
from fedbary.tasks._sandwich import NAME as SCORES


def evaluation_scores(job: Job, request: Request, model: nn.Module) -> dict[str, float]:
    """Score the global model on the site's holdout, and the site's own model if it has one.

    Then both are scored on the server's test set too, weighted to the site's label shares; see
    `fedbary.tasks._classes` for the metrics' names.
    """
    shard, client, settings = job.shard, job.client(request, model), job.node.settings
    sets = {"": Tested(shard.x_held_out, shard.y_held_out)}
    models = client.models(request, job.task.seed("own", job.node.site.key, request.round))
    if request.scores_own_model:
        rule, last = settings.projection, request.round == settings.rounds
        for called, strength in STRENGTHS.items() if rule != "none" and last else ():
            between = projected(rule, models["personal-"].model, models[""].model, strength)
            models[f"projected-{called}-"] = Predictive(between)
        if (test := _test_set(job)) is not None:
            sets["share-"] = test
    seed = scoring_seed(job, request.round)

    def score(by: Predictive) -> dict[str, float]:
        found: dict[str, float] = {}
        for data, on in sets.items():
            scores = job.task.client_scores(model, on, job.facts, seed, by)
            found |= {data + name: value for name, value in scores.items()}
        return found

    return client.scores(models, score)


def scoring_seed(job: Job, server_round: int) -> int:
    """Return the seed of the networks that a site draws for its scores in a round."""
    return job.task.seed("predict", job.node.site.key, server_round)


def _test_set(job: Job) -> Tested | None:
    """Return the server's test set, if the site is simulated, with weights by its label shares."""
    scored = job.task.scored_by_clients(job.facts) if job.node.site.partition is not None else None
    counts = job.task.label_counts(job.shard, job.signature)
    if scored is None or not counts:
        return None
    weights = label_share_weights(job.task.strata(scored[1]), counts)
    return None if weights is None else Tested(*scored, weights)


def disclosed_kinds(job: Job, question: str) -> set[str]:
    """Return the words of `withhold` that forbid the answer to a question."""
    if question not in (QUESTION, SIZES):
        return {"label-counts"} if job.task.counts_classes else set()
    by_class = job.node.settings.of_task(OfGuarantees).conformal_by == "class"
    return {"scores", "label-counts"} if by_class else {"scores"}


def answer_of_held_out(
    job: Job, model: nn.Module, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return the histograms of scores and uncertainties on the holdout, or the sizes of its sets.

    Of each group one row counts. Of the sizes the answer has mean and standard deviation alone.

    The networks are those that `fedbary predict` draws, so that all scores are of one predictor.

    Parameters
    ----------
    job, model
        The site's, and the network of the run.
    config, tensors
        Of the question: how members are pooled, the noise that is added, and what predicts; the
        thresholds, where sizes are asked for.
    """
    settings, own = job.node.settings, job.held
    if not len(own.y_held_out):
        return {**dict.fromkeys(("cells", "counts", "risk-cells", "risk-counts"), [])}
    joined_by = method_of(settings).joining(json.loads(str(config["joined-by"])))
    by = Predictive.from_tensors(tensors, joined_by, float(config["noise-var"]))
    model.load_state_dict({**by.model})
    seed = seed_of_draws(settings.seed)
    alone = own.independent is None
    drawn = torch.ones_like(own.y_held_out, dtype=torch.bool) if alone else own.independent
    held = (part[drawn] for part in (job.shard.x_held_out, own.x_held_out, own.y_held_out))
    taken, x, y = held
    prediction = job.task.predicted(model, taken, job.facts, seed, by)
    if config["question"] == QUESTION:
        repeated = job.task.repeats(job.raw, job.node.site) if alone else 0
        found = held_out(settings, job.signature, prediction, x, y)
        return found._replace(repeated=repeated).told()
    bins, rows = torch.tensor(config["bins"]), groups(settings, job.signature, x)
    _, sizes = hits_and_sizes(settings, bins, prediction, y, rows)
    return dict(zip(("mean", "std"), moments(sizes), strict=True))


torch.backends.cudnn.deterministic = True
spare_imports()


def apply_mods(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a message through the gates: discretion, then compression."""

    def packed(message: Message, context: Context) -> Message:
        return compression(message, context, call_next)

    return discretion(message, context, packed)


def require_same_app(config: Mapping[str, Any]) -> None:
    """Raise a SettingError unless this process runs the server's code of fedbary.

    Ray's workers look for modules first in the folder where Flower's local SuperLink was started.
    """
    if config.get(APP_KEY, own := app_digest()) != own:
        log(WARNING, "This process runs the code of %s, which is not the server's", __file__)
        mend = "in a simulation stop Flower's local SuperLink, and start it in another folder"
        raise SettingError("code of fedbary", own, f"{config[APP_KEY]}, the server's; {mend}")


def query(message: Message, context: Context) -> Message:
    """Answer with this node's data, and its numbers of examples and of each class."""
    require_same_app(message.content.config_records["config"])
    job = job_of(message, context)
    site = job.node.site
    for note in job.task.site_notes(site, job.signature):
        log(INFO, "%s", note)
    if site.partition is None and job.node.keeps_in is None:
        log(INFO, "no state-path: the site keeps no record, and does not check whether its data "
            "change within a run")  # fmt: skip
    reply = MetricRecord(
        {
            "partition-id": -1 if site.partition is None else site.partition,
            "num-partitions": site.partitions,
            "num-examples": len(job.shard.y),
            "num-held-out": len(job.shard.y_held_out),
            "label-counts": job.task.label_counts(job.shard, job.signature),
            "numbers-left": job.numbers_left,
        }
    )
    words = {"name": site.name, "content": job.content or checksum_of(job), **software()}
    words["share"] = " ".join(sorted(site.shared))
    named = ConfigRecord({**words})
    return job.counted(Message(RecordDict({"metrics": reply, "site": named}), reply_to=message))


def software() -> dict[str, str]:
    """Return the digest of this process's code of fedbary, and the versions that it runs with."""
    return {"code": app_digest(), "versions": json.dumps(versions())}


def checksum_of(job: Job) -> str:
    """Return the checksum of all rows of a site's own; "" if it withholds answers or adds noise."""
    words, site = dict(job.node.settings), job.node.site
    noisy = "delta" in words and words["epsilon"]
    if site.partition is not None or "answers" in site.withheld or noisy:
        return ""
    held = job.held
    return checksum(torch.cat([held.x, held.x_held_out]), torch.cat([held.y, held.y_held_out]))


def ask(message: Message, context: Context) -> Message:
    """Answer a question of the task about the site's data."""
    job, config = job_of(message, context), message.content.config_records["config"]
    question, withheld = str(config["question"]), job.node.site.withheld
    if "answers" in withheld or disclosed_kinds(job, question) & withheld:
        raise AnswerRefused(f"this site withholds its answer about {question}")
    if job.facts:  # after the rounds, as only then a question has them
        _require_same_data(job, False)
    tensors = message.content.array_records.get("tensors")
    told = tensors.to_torch_state_dict() if tensors is not None else {}
    if question in (QUESTION, SIZES):
        model = _model(job.node.settings, job.signature)
        answer = answer_of_held_out(job, model, config, told)
    else:
        limits = job.limits
        cell, shown = (limits.min_cell, job.least_shown) if limits else (0, 0)
        asked = {**config, LEAST: cell, SHOWN: shown}
        shard = job.held if question in job.task.plain else job.shard
        if found := job.task.facts_of(config, told):
            job.require_told(found)
        with job.refusing():
            if question == SCORES:
                job.task.require_weight(job.held, job.shard, told, shown)
            answer = in_cells(limits, job.task.answer(question, shard, asked, told))
    reply = Message(RecordDict({"metrics": MetricRecord(answer)}), reply_to=message)
    return job.counted(reply, products=job.task.is_of_terms(question, config))


def train(message: Message, context: Context) -> Message:
    """Fit the global model to the site's data and reply with the result."""
    job = job_of(message, context)
    node, task = job.node, job.task
    request = Request.read(message, node.keeps_in)
    node.remember_releases()
    _require_same_data(job, request.round == 1)
    model = _model(node.settings, job.signature)
    again = [node.settings.replicate] if node.settings.replicate else []
    seed = task.seed("train", node.site.key, request.round, *again)
    start = time.perf_counter()
    named = method_of(node.settings).name
    if job.limits and request.method.name != named:
        raise SettingError("method", request.method.name, f"{named}, the run's")
    fitted = job.client(request, model).fit(request, seed)
    with job.refusing():
        task.require_weight(job.held, job.shard, model.state_dict(), job.least_shown)
    if not all(tensor.isfinite().all() for tensor in model.state_dict().values()):
        allowed = "perhaps a smaller value: training diverged, and weights are not finite"
        raise SettingError("lr", dict(node.settings).get("lr", "none"), allowed)
    metrics: dict[str, int | float] = {
        "num-examples": len(job.held.y),
        "train-seconds": time.perf_counter() - start,
    }
    if node.settings.measures_clients(request.round) and node.site.partition is not None:
        scored = task.scored_by_clients(job.facts)
        if scored is not None:
            on, seed = Tested(*scored), scoring_seed(job, request.round)
            found = task.client_scores(model, on, job.facts, seed)
            metrics |= {f"local-{name}": value for name, value in found.items()}
    reply = request.reply(node.attacked(fitted, request.received), metrics)
    return job.counted(reply, products=True)


def evaluate(message: Message, context: Context) -> Message:
    """Score the global model on the site's holdout, and the site's own model."""
    job = job_of(message, context)
    request = Request.read(message, job.node.keeps_in)
    scores = evaluation_scores(job, request, _model(job.node.settings, job.signature))
    metrics = MetricRecord({"num-examples": len(job.shard.y_held_out), **scores})
    return job.counted(Message(RecordDict({"metrics": metrics}), reply_to=message))


def _require_same_data(job: Job, begins: bool) -> None:
    """Raise a SettingError if a site's own data changed within a run."""
    if job.node.site.partition is None and (folder := job.node.keeps_in) is not None:
        require_same_site(folder, job.held, begins, job.facts)


@lru_cache(maxsize=2)
def _model(settings: Settings, signature: Signature) -> nn.Module:
    return task_of(settings).make_model(signature)
