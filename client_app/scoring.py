"""A site's evaluation: scores of the global model, and of its own."""

from __future__ import annotations

from torch import nn

from client_app.job import Job
from fedbary.predictive import Predictive
from fedbary.predictive.projection import STRENGTHS, projected
from fedbary.scores.metrics import label_share_weights
from fedbary.tasks import Tested
from strategies.answering import Request


def evaluation_scores(job: Job, request: Request, model: nn.Module) -> dict[str, float]:
    """Score the global model on the site's holdout, and the site's own model if it has one.

    Then both are scored on the server's test set too, weighted to the site's label shares; see
    `fedbary.tasks._class_scores` for the metrics' names.
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
