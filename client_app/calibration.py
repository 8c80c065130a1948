"""A site's histograms of its holdout, for conformal sets and referral."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from client_app.job import Job
from fedbary.parts.parameters import told
from fedbary.predictive import Predictive
from fedbary.predictive.conformal import QUESTION, held_out_histogram
from fedbary.predictive.histograms import HeldOut, empty
from fedbary.predictive.risk import risk_histogram
from fedbary.seeds import seed_of_draws
from fedbary.settings.task_words import OfSets


def kinds_told(job: Job, question: str) -> set[str]:
    """Return the words of `withhold` that forbid the answer to a question."""
    if question != QUESTION:
        return {"label-counts"} if job.task.counts_classes else set()
    by_class = told(OfSets, job.node.settings).conformal_by == "class"
    return {"scores", "label-counts"} if by_class else {"scores"}


def answer_of_held_out(
    job: Job, model: nn.Module, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return the histograms of scores and uncertainties on the site's holdout.

    The networks are those that `fedbary predict` draws, so that all scores are of one predictor.

    Parameters
    ----------
    job, model
        The site's, and the network of the run.
    config, tensors
        The question's entries: the pooling of members, and the networks that predict.
    """
    settings, shard = job.node.settings, job.shard
    own = told(OfSets, settings)
    by_class, y = own.conformal_by == "class", shard.y_held_out
    if not len(y):
        return {**empty(1).told()}
    by = Predictive.from_tensors(tensors, str(config["joined-by"]))
    model.load_state_dict({**by.model})
    seed = seed_of_draws(settings.seed)
    prediction = job.task.predicted(model, shard.x_held_out, job.facts, seed, by)
    scores = held_out_histogram(own.conformal_score, prediction.probs, y, by_class)
    return {**HeldOut(scores, risk_histogram(prediction, y)).told()}
