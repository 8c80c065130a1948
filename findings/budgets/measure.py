"""As many settings a side, then fresh seeds of the best: `choice.csv.xz` and `scores.csv.xz`.

    python -m findings.budgets.measure findings/budgets/grid.yaml findings/budgets DATA_DIR

DATA_DIR holds `features64.npz` (`findings.features`). The grid has what all runs share. Settings
are points of a Sobol sequence; they are scored on validation data at seeds that are not reported.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import qmc

from fedbary.settings.config import read_yaml
from findings.federations import trained
from findings.heads import add, scores, settings_of

BUDGET, CHOICE_SEEDS, SEEDS = 64, (100, 101), range(30)

Side = Callable[[list[float]], dict[str, Any]]


def between(u: float, low: float, high: float) -> float:
    """Return a number between two by its logarithm, to two digits."""
    return float(f"{math.exp(math.log(low) + u * math.log(high / low)):.2g}")


def posterior(u: list[float]) -> dict[str, Any]:
    """Return a setting of RKLB: a sixth by IVON, a sixth by natural gradients."""
    kl = "share" if u[0] > 5 / 6 else between(6 / 5 * u[0], 1e-5, 1.0)
    inference = "ivon" if u[6] < 1 / 6 else "natural_gradient" if u[6] < 1 / 3 else "variational"
    return {
        "rule": "RKLB",
        "bayesian_layers": 2,
        "inference": inference,
        "kl_weight": kl,
        "init_log_var": round(-12 + 9 * u[1], 1),
        "log_var_lr": between(u[2], 0.001, 0.1),
        "prior_std": between(u[3], 0.03, 1.0),
        "lr": between(u[4], 0.01, 0.5),
        "momentum": 0.9 if u[5] < 0.5 else 0.5,
    }


def point(u: list[float]) -> dict[str, Any]:
    """Return a setting of FedAvg or SCAFFOLD, a half each."""
    common = {"lr": between(u[0], 0.01, 1.0), "weight_decay": between(u[1], 1e-5, 0.1)}
    if u[3] < 0.5:
        own = {"method": "SCAFFOLD", "momentum": 0.0 if u[2] < 0.5 else 0.5}
        return {**own, "bayesian_layers": 0, **common}
    return {
        "rule": "FedAvg",
        "bayesian_layers": 0,
        "momentum": 0.9 if u[2] < 0.5 else 0.5,
        **common,
    }


SIDES: Mapping[str, tuple[int, Side]] = {"point": (4, point), "posterior": (7, posterior)}
"""Each side's number of dimensions, and its settings by a point of the unit cube."""


REPORTED = ("RKLB", "FedAvg", "SCAFFOLD")
"""The methods and rules whose best setting is compared at fresh seeds."""


def tried(side: str) -> list[dict[str, Any]]:
    """Return the settings of a side."""
    count, of = SIDES[side]
    points = qmc.Sobol(count, seed=0).random(BUDGET)
    return [of(row) for row in points.tolist()]


def best(choice: pd.DataFrame, name: str) -> dict[str, Any]:
    """Return the setting of a method or rule with the least mean NLL on validation data."""
    nll = choice.groupby("side")["nll"].mean().sort_values()
    every = (json.loads(key) for key in nll.index)
    return next(own for own in every if own.get("method", own.get("rule")) == name)


def main(grid: Path, folder: Path, data: Path) -> None:
    """Write the tables."""
    common = read_yaml(grid)["settings"]
    on_validation = {**common, "evaluate_on": "validation"}
    for one, other in itertools.zip_longest(tried("posterior"), tried("point")):
        for own in (one, other):
            _score(folder / "choice.csv.xz", on_validation, own, CHOICE_SEEDS, data)
    choice = pd.read_csv(folder / "choice.csv.xz")
    for name in REPORTED:
        _score(folder / "scores.csv.xz", common, best(choice, name), SEEDS, data)


def _score(
    file: Path, common: Mapping[str, Any], own: Mapping[str, Any], seeds: Any, data: Path
) -> None:
    several = settings_of(common, own, seeds, data)

    def rows() -> Iterator[dict[str, Any]]:
        for each in trained(several):
            by = each.method.predictive(each.model, each.state)
            found = {"nll": float("inf")}
            if all(tensor.isfinite().all() for tensor in by.model.values()):
                found = scores(each, each.predicted)
            yield {"seed": each.settings.seed, **found}

    add(file, json.dumps(own), rows)


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:4]))
