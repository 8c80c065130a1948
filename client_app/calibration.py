"""A site's histograms of its holdout, for conformal sets and referral."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from client_app.job import Job
from fedbary.methods import method_of
from fedbary.parts.parameters import told
from fedbary.predictive import Predictive
from fedbary.predictive.conformal import QUESTION, SIZES
from fedbary.scores.coverage import moments
from fedbary.seeds import seed_of_draws
from fedbary.settings.task_words import OfGuarantees
from fedbary.tasks import groups, held_out, hits_and_sizes


def kinds_told(job: Job, question: str) -> set[str]:
    """Return the words of `withhold` that forbid the answer to a question."""
    if question not in (QUESTION, SIZES):
        return {"label-counts"} if job.task.counts_classes else set()
    by_class = told(OfGuarantees, job.node.settings).conformal_by == "class"
    return {"scores", "label-counts"} if by_class else {"scores"}


def answer_of_held_out(
    job: Job, model: nn.Module, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return the histograms of scores and uncertainties on the holdout, or the sizes of its sets.

    Of the sizes the answer has mean and standard deviation alone.

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
    prediction = job.task.predicted(model, job.shard.x_held_out, job.facts, seed, by)
    x, y = own.x_held_out, own.y_held_out
    if config["question"] == QUESTION:
        return {**held_out(settings, job.signature, prediction, x, y).told()}
    bins, rows = torch.tensor(config["bins"]), groups(settings, job.signature, x)
    _, sizes = hits_and_sizes(settings, bins, prediction, y, rows)
    return dict(zip(("mean", "std"), moments(sizes), strict=True))
