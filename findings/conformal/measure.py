"""Writes `scores.csv`: `python -m findings.conformal.measure DATA_DIR`, some ten minutes of a CPU.

A federation trains. Then each client's held-out examples are halved at random, `HALVES` times. One
half makes the thresholds in several ways, and the other half scores them.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import fedbary
from fedbary.data.sites import Site
from fedbary.predictive.conformal import Thresholds, class_bins, counted, residual_bins, upper_odds
from fedbary.seeds import seed_of_draws
from fedbary.settings.config import resolve
from fedbary.trained import Trained
from server_app.engine.inline import run_inline

LEVEL, SEEDS, ENOUGH = 0.9, range(5), 30
"""The last is how many held-out examples a client needs to count for the worst client."""

HALVES = {"digits": 400, "fashionmnist": 50, "kin8nm": 50}
"""More where fewer are held out: the mean over halves then has a standard error of .2 points."""

QUICK: dict[str, Any] = {
    "engine": "inline", "pictures": False, "device": "cpu", "clients": 10, "holdout": 0.3,
    "conformal": LEVEL, "evaluate_clients": 0,
}  # fmt: skip
NETWORK: dict[str, Any] = {"model": "mlp", "bayesian_layers": 1, "local_epochs": 2, "samples": 10}
RUNS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits", "rounds": 3, "batch_size": 16, **NETWORK},
    "fashionmnist": {
        "dataset": "fashionmnist", "rounds": 3, "batch_size": 64, "train_fraction": 0.25, **NETWORK,
    },
    "kin8nm": {
        "task": "regression", "dataset": "uci/kin8nm", "method": "ConjugateGaussian",
        "model": "linear", "noise": "learned", "rounds": 1,
    },
}  # fmt: skip
SPLITS: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "Dirichlet 0.5": {"partition": "dirichlet", "alpha": 0.5},
    "Dirichlet 0.1": {"partition": "dirichlet", "alpha": 0.1},
    "sizes 0.5": {"partition": "quantity", "alpha": 0.5},
}


@dataclass(frozen=True, eq=False)
class Held:
    """Examples by their scores.

    Attributes
    ----------
    scores, bins : Tensor
        Of each class, (N, classes); of numbers (N, 1).
    y : Tensor
        The column of the true score, (N,): the class, or 0.
    unit : Tensor
        How much a unit of a number's score is in width, (N,); of classes none.
    """

    scores: Tensor
    bins: Tensor
    y: Tensor
    unit: Tensor | None = None

    def part(self, index: Tensor) -> Held:
        """Return the examples at some places."""
        unit = None if self.unit is None else self.unit[index]
        return Held(self.scores[index], self.bins[index], self.y[index], unit)

    @property
    def own(self) -> Tensor:
        """The true scores, (N,), in ascending order."""
        return self.scores.gather(1, self.y[:, None])[:, 0].sort().values

    @property
    def histogram(self) -> Tensor:
        """Counts of the true bins, a row a class."""
        own = self.bins.gather(1, self.y[:, None])[:, 0]
        return counted(own, self.y, self.bins.shape[1])

    def scored(self, limit: Tensor | float, exact: bool) -> tuple[Tensor, Tensor]:
        """Return hits and sizes (N,) of sets up to a limit on scores or bins."""
        within = (self.scores if exact else self.bins) <= limit
        hits = within.gather(1, self.y[:, None])[:, 0]
        if self.unit is None:
            return hits, within.sum(1).double()
        edge = float(limit) if exact else upper_odds(int(limit))
        return hits, edge * self.unit


def held_by(trained: Trained, x: Tensor, y: Tensor) -> Held:
    """Return examples, as the model takes them, by their scores."""
    seed = seed_of_draws(trained.settings.seed)
    found = trained.task.predicted(trained.network, x, trained.facts, seed, trained.predictive)
    if hasattr(found, "probs"):
        return Held(1 - found.probs.double(), class_bins("lac", found.probs), y)
    std = found.var.double().sqrt()
    scores = ((y - found.mean).abs() / std)[:, None]
    return Held(scores, residual_bins(found, y)[:, None], torch.zeros(len(y)).long(), 2 * std)


def exact_quantile(own: Tensor, most: float) -> float:
    """Return the ⌈(n + 1) level⌉-th of sorted scores; the largest there is where n is less."""
    rank = math.ceil((len(own) + 1) * Fraction(str(LEVEL)))
    return float(own[rank - 1]) if rank <= len(own) else most


def limits(known: list[Held]) -> Iterator[tuple[str, list[Tensor | float], bool]]:
    """Yield each way with its limit for each client, and whether it is on scores, not on bins."""
    many, numbers = len(known), known[0].unit is not None
    most = float("inf") if numbers else 1.0
    together = torch.cat([held.own for held in known]).sort().values
    yield "central", [exact_quantile(together, most)] * many, True
    alone = [exact_quantile(held.own, most) for held in known]
    yield "alone", list(alone), True
    sizes = [len(held.y) for held in known]
    mean = sum(q * n for q, n in zip(alone, sizes, strict=True) if n) / sum(sizes)
    yield "mean of quantiles", [mean] * many, True
    parts = [held.histogram for held in known]
    rows = sum(parts[1:], parts[0])
    all_ = rows.sum(0, keepdim=True)
    yield "sum", [Thresholds(LEVEL, all_).bins] * many, False
    own = [Thresholds(LEVEL, all_).of_site(p.sum(0, keepdim=True), False).bins for p in parts]
    yield "site", list(own), False
    if not numbers:
        yield "class", [Thresholds(LEVEL, rows).bins] * many, False
        yield "weighted", [Thresholds(LEVEL, rows).of_site(p, True).bins for p in parts], False


def rows_of(clients: list[Held], test: Held, halves: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the scores of each way."""
    generator = torch.Generator().manual_seed(seed)
    kept: dict[str, list[list[tuple[Tensor, Tensor, Tensor]]]] = {}
    for _ in range(halves):
        orders = [torch.randperm(len(held.y), generator=generator) for held in clients]
        parts = [order.tensor_split([(len(order) + 1) // 2]) for order in orders]
        known, new = (
            [held.part(part[which]) for held, part in zip(clients, parts, strict=True)]
            for which in (0, 1)
        )
        for way, each, exact in limits(known):
            found = [(*own.scored(limit, exact), own.y)
                     for own, limit in zip(new, each, strict=True)]  # fmt: skip
            kept.setdefault(way, []).append(found)
    large = [k for k, held in enumerate(clients) if len(held.y) >= ENOUGH]
    weights = torch.tensor([len(held.y) for held in clients]).double()
    for way, each, exact in limits(clients):
        hits, sizes, y = (torch.cat([c[i] for found in kept[way] for c in found]) for i in range(3))
        by_client = [torch.cat([found[k][0] for found in kept[way]]) for k in large]
        on_test = [test.scored(limit, exact) for limit in each]
        means = ([client[of].double().mean() for client in on_test] for of in (0, 1))
        of_test = [float(weights @ torch.stack(each) / weights.sum()) for each in means]
        yield {
            "way": way,
            "examples": int(weights.sum()) // 2,
            "coverage": float(hits.double().mean()),
            "size": float(sizes.mean()),
            "worst_class": min(float(hits[y == c].double().mean()) for c in y.unique()),
            "worst_client": min(float(own.double().mean()) for own in by_client),
            "test_coverage": of_test[0],
            "test_size": of_test[1],
        }


def measured(name: str, split: str, seed: int, data: Path) -> Iterator[dict[str, Any]]:
    """Train a federation, and yield the scores of each way."""
    own = {**QUICK, **RUNS[name], **SPLITS[split], "seed": seed, "data_dir": str(data)}
    with tempfile.TemporaryDirectory() as scratch:
        run_inline(resolve(own), Path(scratch) / "run")
        trained = fedbary.load(Path(scratch) / "run")
    task, clients = trained.task, []
    for k in range(QUICK["clients"]):
        shard = task.shard(Site(f"partition {k}", "", k, QUICK["clients"]), trained.signature)
        x = task.prepared(shard, trained.facts).x_held_out
        clients.append(held_by(trained, x, shard.y_held_out))
    scored = task.scored_by_clients(trained.facts)
    for row in rows_of(clients, held_by(trained, *scored), HALVES[name], seed):
        yield {"data": name, "split": split, "seed": seed, **row}


def main(data: Path) -> None:
    """Write the table beside this file, after each run."""
    found: list[dict[str, Any]] = []
    for seed, name, split in itertools.product(SEEDS, RUNS, SPLITS):
        if split in (("iid", "sizes 0.5") if name == "kin8nm" else [*SPLITS][:3]):
            found += measured(name, split, seed, data)
            table = pd.DataFrame(found)
            table.to_csv(Path(__file__).parent / "scores.csv", index=False, float_format="%.5g")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
