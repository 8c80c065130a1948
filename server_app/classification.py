"""Classification at the server: scores of the global model on the test images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import MetricRecord, RecordDict
from torch import Tensor

from fedbary.config import Settings
from fedbary.federation import evaluation_data, make_model, ood_images, task_of
from fedbary.metrics import accuracy_after_rejection, auroc, fairness
from fedbary.metrics import evaluate as score
from fedbary.predictive import Prediction, predict
from fedbary.runs import RunFolder
from fedbary.seeds import derive_seed
from fedbary.task import Task
from server_app.recorder import Recorder
from server_app.roster import Roster

__all__ = ["ClassificationRecorder", "Task", "task_of"]

ECE_BINS = (15, 100)
"""The numbers of bins in use: most papers' and BA-BFL's; both are recorded beside `ece_bins`."""

SCORES = {"accuracy": (0.0, 1.0), "nll": (0.0, 1000.0), "ece": (0.0, 1.0), "brier": (0.0, 2.0)}
"""The scores of a model's probabilities, each with its least and its largest value.

A probability's negative logarithm is at most 745 in float64, or infinite.
"""

REPEATS = 5
"""Sets of networks drawn from the final posterior, over which the ECE's own spread is taken."""

REJECTED = tuple(tenth / 10 for tenth in range(10))
"""Fractions of the test set that are rejected, most uncertain first."""


class ClassificationRecorder(Recorder):
    """Scores the global model by its mean softmax, and takes in the clients' fairness."""

    known_metrics = {
        **Recorder.known_metrics,
        **{f"local-{name}": limits for name, limits in SCORES.items()},
        **SCORES,
    }

    def __init__(self, settings: Settings, results: RunFolder, roster: Roster) -> None:
        task = task_of(settings)
        self.network = make_model(settings, task)
        super().__init__(settings, results, roster, self.network, task.config())
        self.test = evaluation_data(settings) if settings.dataset != "none" else None
        self.prediction: Prediction | None = None

    def on_train(self, replies: list[RecordDict], weight_key: str) -> MetricRecord:
        """Take the training metrics, and the fairness of the clients' own models."""
        metrics = super().on_train(replies, weight_key)
        told = [client for client in self.round["clients"] if "local-accuracy" in client]
        if told:
            accuracies = [client["local-accuracy"] for client in told]
            self.round["local_models"] = fairness(accuracies, [c[weight_key] for c in told])
        return metrics

    def on_evaluate(self, replies: list[RecordDict], weight_key: str) -> MetricRecord:
        """Take the global model's scores on each client's held-out examples."""
        told = [client for client in self._metrics(replies) if client.keys() >= SCORES.keys()]
        if told:
            accuracies = [client["accuracy"] for client in told]
            spread = fairness(accuracies, [client[weight_key] for client in told])
            self.round["held_out"] = {**spread, "clients": told}
        return super().on_evaluate(replies, weight_key)

    def finish(self) -> None:
        """Draw the pictures and write the final posterior."""
        if self.prediction is not None and self.test is not None:
            probs, labels = self.prediction.probs, self.test[1]
            self.results.draw_reliability(probs, labels, self.settings.ece_bins)
        super().finish()

    def _said(self, scores: Mapping[str, float]) -> str:
        if math.isnan(scores["accuracy"]):
            why = "no site has answered" if self.test is None else "predictions are not finite"
            return f"not scored, {why}"
        accuracy, nll, ece = (scores[name] for name in ("accuracy", "nll", "ece"))
        return f"accuracy {100 * accuracy:.2f} %  NLL {nll:.4f}  ECE {100 * ece:.2f} %"

    def _scores(self, server_round: int) -> dict[str, float]:
        """Score the global model on the test set, or, without one, on what the sites hold out.

        The latter are the means over the sites, weighted by how much each holds out.
        """
        scores = dict.fromkeys(SCORES, math.nan)
        if self.test is None:
            clients = self.round.get("held_out", {}).get("clients", [])
            if clients:
                weights = [client["num-examples"] for client in clients]
                for name in SCORES:
                    values = [client[name] for client in clients]
                    scores[name] = float(np.average(values, weights=weights))
            return scores
        images, labels = self.test
        self.prediction = self._predict(images, server_round)
        if self.prediction.probs.isfinite().all():
            scores = score(self.prediction.probs, labels, self.settings.ece_bins)
            self.round |= self._beyond(self.prediction, images, labels, server_round)
        return scores

    def _predict(self, images: torch.Tensor, *indices: int) -> Prediction:
        seed = derive_seed(self.settings.seed, "predict-global", *indices)
        generator = torch.Generator(images.device).manual_seed(seed)
        return predict(self.network, images, self.settings.samples, generator)

    def _beyond(
        self, here: Prediction, images: Tensor, labels: Tensor, server_round: int
    ) -> dict[str, Any]:
        """Return the ECE in the usual bins and the split of uncertainty; at the end more.

        That is what the uncertainty is worth (accuracy after rejection, detection of foreign data)
        and how far the ECE moves with the draw of the networks: its standard deviation.
        """
        line: dict[str, Any] = {
            f"ece_{bins}": score(here.probs, labels, bins)["ece"] for bins in ECE_BINS
        }
        line["uncertainty"] = {
            "entropy": float(here.entropy.mean()),
            "aleatoric": float(here.aleatoric.mean()),
            "epistemic": float(here.epistemic.mean()),
        }
        if server_round < self.settings.rounds:
            return line
        kept = accuracy_after_rejection(here.probs, labels, here.entropy, REJECTED)
        line["rejection"] = {
            f"{fraction:.1f}": value for fraction, value in zip(REJECTED, kept, strict=True)
        }
        if self.settings.bayesian_layers > 0:
            again = [self._predict(images, server_round, i).probs for i in range(1, REPEATS)]
            line["monte_carlo"] = {
                f"ece_{bins}": float(
                    np.std([score(p, labels, bins)["ece"] for p in [here.probs, *again]], ddof=1)
                )
                for bins in ECE_BINS
            }
        foreign = ood_images(self.settings)
        if foreign is not None:
            there = self._predict(foreign, server_round)
            line["ood"] = {
                "auroc_entropy": auroc(here.entropy, there.entropy),
                "auroc_epistemic": auroc(here.epistemic, there.epistemic),
            }
        return line
