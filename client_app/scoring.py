"""What a site scores when it evaluates: the global model, and its own beside it."""

from __future__ import annotations

from flwr.app import Message
from torch import Tensor, nn

from client_app.job import Job
from client_app.node import config_of, received_of, round_of
from fedbary.methods import Method
from fedbary.predictive import Predictive
from fedbary.predictive.projection import STRENGTHS, projected
from fedbary.scores.metrics import label_share_weights
from strategies.answering import METHOD_KEY, global_model, has_own_model, method_of


def evaluation_scores(job: Job, message: Message, model: nn.Module) -> dict[str, float]:
    """Score the global model on what the site holds out, and the site's own, where it has one.

    Then both are scored on the server's test set as well, under weights by which it has the site's
    label shares; see `fedbary.tasks._class_scores` for the metrics' names. A site that has no model
    of its own yet would use the global one.
    """
    shard, server_round = job.shard, round_of(message)
    received = received_of(message)
    sets: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {
        "": (shard.x_held_out, shard.y_held_out, None)
    }
    config = config_of(message)
    method = method_of(config) if METHOD_KEY in config else Method()
    models = {"": global_model(method, received, model.state_dict().keys())}
    if has_own_model(method, config):
        seed = job.task.seed("own", job.node.site.key, server_round)
        own = job.node.personal(message, received, job.local(message, received, model, seed))
        models["personal-"] = own or models[""]
        rule, last = job.node.settings.projection, server_round == job.node.settings.rounds
        for called, strength in STRENGTHS.items() if rule != "none" and last else ():
            between = projected(rule, models["personal-"].model, models[""].model, strength)
            models[f"projected-{called}-"] = Predictive(between)
        if (test := _test_set(job)) is not None:
            sets["share-"] = test
    found: dict[str, float] = {}
    for owner, held in models.items():
        model.load_state_dict({**held.model})
        for data, (x, y, weights) in sets.items():
            seed = scoring_seed(job, server_round)
            scores = job.task.client_scores(model, x, y, job.facts, seed, held, weights)
            found |= {f"{owner}{data}{name}": value for name, value in scores.items()}
    return found


def scoring_seed(job: Job, server_round: int) -> int:
    """Return the seed of the networks that a site draws for its scores in a round."""
    return job.task.seed("predict", job.node.site.key, server_round)


def _test_set(job: Job) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the server's test set, if the site is simulated, with weights by its label shares."""
    scored = job.task.scored_by_clients(job.facts) if job.node.site.partition is not None else None
    counts = job.task.label_counts(job.shard, job.signature)
    if scored is None or not counts:
        return None
    weights = label_share_weights(job.task.strata(scored[1]), counts)
    return None if weights is None else (*scored, weights)
