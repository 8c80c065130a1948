"""Tables and a number for each of their rows.

All sites standardise features and target alike, from sums that they send. Predictions are Gaussian,
with or without a term for the target's noise (`noise`), and scored in the target's own units.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from fedbary.data import deal
from fedbary.data.examples import Examples
from fedbary.data.shard import Shard
from fedbary.data.sites import Site
from fedbary.data.table_examples import read_measured
from fedbary.data.tables import Table, load
from fedbary.errors import SettingError
from fedbary.figures.run import coverage_curve
from fedbary.figures.sheet import BLUE, GREEN, RED
from fedbary.predictive.combine import Gate, Pool
from fedbary.predictive.draws import drawn, members_drawn
from fedbary.regression.columns import Columns
from fedbary.regression.forecast import (
    Forecast,
    forecast,
    gated_forecast,
    linear_forecast,
    pooled_forecast,
)
from fedbary.regression.networks import Regressor, gaussian_nll
from fedbary.regression.noise import NoiseSums, noise_sums
from fedbary.regression.standardise import Standardiser
from fedbary.scores.regression import SCORES, coverage, score
from fedbary.tasks import _sums
from fedbary.tasks._task import Task
from fedbary.tasks._values import Dialogue, Facts, Loss, Outcome, Question, Scored

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE = "noise"

NINETY_PERCENT = 1.6448536269514722
"""Half the width of the central 90 % interval of a Gaussian, in standard deviations."""


class Regression(Task):
    """Regression on tables, scored by Gaussian predictions in the target's own units."""

    by_split = True
    facts = "standardiser"
    known_metrics = {"train-mse": (0.0, math.inf)}
    curves = (
        ("nll", 1, "Negative log-likelihood (nats)", RED),
        ("rmse", 1, "Root mean squared error", BLUE),
        ("coverage_90", 100, "Targets in the 90 % interval (%)", GREEN),
    )

    def check(self, own_data: bool) -> None:
        """Raise a SettingError if the data or the split cannot be had."""
        deal.evaluation_data(self.held, self.deal)
        if not own_data:
            deal.client_rows(self.held, self.deal, self.settings.clients)
        self.make_model(self.signature())

    @property
    def held(self) -> Table:
        """The table that the settings name."""
        return self._load(self.settings.dataset)

    def _load(self, name: str) -> Table:
        by = self.settings
        return load(name, by.data_dir, by.target, by.download)

    def signature(self) -> Columns:
        """Return the columns of the server's data."""
        return Columns(self.held.features)

    def signature_from(self, config: Mapping[str, Any]) -> Columns:
        """Return the columns that a ConfigRecord holds."""
        return Columns.from_config(config)

    def shard(self, site: Site, signature: Columns) -> Shard:
        """Return a site's features and targets."""
        name = self.settings.dataset if site.partition is not None else site.data_path
        table = self._load(name)
        if table.features != signature.features:
            allowed = f"the server's: {', '.join(signature.features)}"
            raise SettingError(f"{table.name}: features", ", ".join(table.features), allowed)
        if site.partition is None:
            return deal.site_shard(table.x, table.y, self.deal, site.key)
        return deal.client_shard(table, self.deal, site.partitions, site.partition)

    def sample(self, count: int) -> tuple[Tensor, Tensor, int]:
        """Return zeros in place of standardised rows: the time they take is the same."""
        x, y = deal.training_data(self.held, self.deal)
        part = torch.zeros_like(x[:count]).float()
        return part, torch.zeros(len(part)), len(y)

    def make_model(self, signature: Columns) -> nn.Module:
        """Return the network for rows of those features; one for squared errors has no noise."""
        settings = self.settings
        noise = "none" if settings.trains_on_squares else settings.noise
        hidden = settings.hidden_units if settings.model == "mlp" else 0
        model = Regressor(len(signature.features), hidden, settings.bayesian_layers, noise)  # type: ignore
        model.reset(settings.init_log_var, self.seed("model"))
        return model

    def loss(self, facts: Facts) -> Loss:
        """Return the Gaussian negative log-likelihood of standardised targets."""
        return gaussian_nll

    def prepared(self, shard: Shard, facts: Facts) -> Shard:
        """Return a shard with features and targets standardised."""
        by = Standardiser(**facts)
        return Shard(
            by.features(shard.x),
            by.target(shard.y),
            by.features(shard.x_held_out),
            by.target(shard.y_held_out),
        )

    def answer(
        self, question: str, shard: Shard, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Answer with the sums of the columns, the target's last, or with those of the noise."""
        if question == _sums.NAME:
            return _sums.answer(torch.cat([shard.x, shard.y[:, None]], 1), asked)
        if question == NOISE:
            held = noise_sums(tensors, shard.x, shard.y, int(asked["place"]))
            return {"count": held.count, "squares": held.squares, "spread": held.spread}
        return super().answer(question, shard, asked, tensors)

    def ask_first(self) -> Dialogue[dict[str, Tensor]]:
        """Ask for the sums of the columns; return the standardisation."""
        sums = yield from _sums.ask(len(self.signature().features) + 1)
        standardiser = Standardiser.from_sums(sums)
        return {"mean": standardiser.mean, "std": standardiser.std}

    def ask_after(
        self, members: Mapping[str, Tensor], last: Mapping[str, Any]
    ) -> Dialogue[dict[str, Any]]:
        """Ask each client how far the others' networks miss its data; return the noise.

        If nobody answers, the noise of the round before stays.
        """
        noise = self.settings.noise
        if self.settings.trains_on_squares and isinstance(noise, float):
            return {"noise_var": noise}
        if noise == "cross" and members:
            answers = yield Question(NOISE, read_noise, tensors=members)
            if answers:
                return {"noise_var": functools.reduce(operator.add, answers).noise_var}
        return {"noise_var": last.get("noise_var", 0.0)}

    def scores(self, outcome: Outcome, facts: Facts) -> Scored:
        """Score the predictions; where a noise was added to them, without it too."""
        x, targets = deal.evaluation_data(self.held, self.deal)
        seed = self.seed("predict-global", outcome.round)
        prediction = self.predict(outcome, x, facts, seed)
        if not (prediction.mean.isfinite().all() and prediction.var.isfinite().all()):
            return Scored(dict.fromkeys(SCORES, math.nan))
        line: dict[str, Any] = {}
        if outcome.told["noise_var"] > 0:
            none = torch.zeros_like(prediction.aleatoric)
            line["without_noise"] = score(replace(prediction, aleatoric=none), targets)
        return Scored(score(prediction, targets), line, prediction)

    def said(self, scores: Mapping[str, float]) -> str:
        """Return NLL, RMSE and coverage."""
        if math.isnan(scores["rmse"]):
            return "not scored, predictions are not finite"
        within = 100 * scores["coverage_90"]
        nll, rmse = scores["nll"], scores["rmse"]
        return f"NLL {nll:.4f}  RMSE {rmse:.4g}  in the 90 % interval {within:.1f} %"

    def pictures(self, prediction: Forecast, facts: Facts) -> Iterator[tuple[str, Figure]]:
        """Yield how many of the targets lie in the central intervals of their predictions."""
        targets = deal.evaluation_data(self.held, self.deal)[1]
        yield self._coverage(prediction, targets, "Final global model")

    def predict(self, outcome: Outcome, x: Tensor, facts: Facts, seed: int) -> Forecast:
        """Return the forecast of rows in their own units, in the target's."""
        standardiser = Standardiser(**facts)
        return standardiser.restore(self._predict(outcome, standardiser.features(x), seed))

    def examples(self, path: Path, signature: Columns) -> Examples:
        """Read a CSV or an ``.npz`` file."""
        return read_measured(path, self.settings.target, signature.features)

    def evaluation_examples(self) -> Examples:
        """Return the test rows, or those kept for validation."""
        x, y = deal.evaluation_data(self.held, self.deal)
        return Examples(tuple(str(row) for row in range(1, len(y) + 1)), x, y)

    def answers(self, prediction: Forecast, signature: Columns) -> dict[str, np.ndarray]:
        """Return means, standard deviations and central 90 % intervals, in the target's units."""
        mean, std = prediction.mean.double().numpy(), prediction.var.double().sqrt().numpy()
        half = NINETY_PERCENT * std
        return {
            "mean": mean,
            "std": std,
            "lower 90 %": mean - half,
            "upper 90 %": mean + half,
            "epistemic std": prediction.epistemic.double().sqrt().numpy(),
        }

    def judged(self, prediction: Forecast, y: Tensor) -> dict[str, float]:
        """Return NLL, RMSE and what else is scored."""
        return score(prediction, y)

    def judgement(self, prediction: Forecast, y: Tensor) -> Iterator[tuple[str, Figure]]:
        """Yield how many targets lie in the central intervals."""
        yield self._coverage(prediction, y, "Global model, these examples")

    def _coverage(self, prediction: Forecast, y: Tensor, title: str) -> tuple[str, Figure]:
        levels = np.linspace(0.01, 0.99, 99)
        covered = coverage(prediction, y, torch.from_numpy(levels)).numpy()
        return "coverage", coverage_curve(levels, covered, title)

    def _predict(self, outcome: Outcome, x: Tensor, seed: int) -> Forecast:
        """Return the forecast of standardised rows."""
        kind, noise_var = self.settings.predictive, outcome.told["noise_var"]
        if kind == "closed":
            return linear_forecast(outcome.posterior, x, noise_var)
        generator = Generator().manual_seed(seed)
        samples = self.settings.samples
        members, pool = outcome.members, outcome.pool
        if kind == "auto" and isinstance(pool, Gate):
            return gated_forecast(members, x, noise_var, pool.experts)
        if kind == "auto" and isinstance(pool, Pool):
            return pooled_forecast(members, x, noise_var, pool)
        if kind != "montecarlo" and members:
            if isinstance(pool, Gate):
                members = {name: tensor[: pool.experts] for name, tensor in members.items()}
            return forecast(members_drawn(members, samples, generator), x, noise_var)
        return forecast(drawn(outcome.posterior, samples, generator), x, noise_var)


def read_noise(metrics: Mapping[str, Any], most: int) -> NoiseSums:
    """Return the sums that an answer holds, of at most so many rows; an error if it holds none."""
    count = _sums.count(metrics, most)
    squares, spread = float(metrics["squares"]), float(metrics["spread"])
    if not (0 <= squares <= _sums.LARGEST_SUM and 0 <= spread <= _sums.LARGEST_SUM):
        raise ValueError(f"{squares:g} and {spread:g} are no sums of squares")
    return NoiseSums(count, squares, spread)
