"""As many settings for each side: points of Sobol sequences, the same ranges where sides share.

`start` is not of a run: the factor of the last layer's first weights. The others' are drawn alike,
so a side begins with the means of RKLB's first posterior.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from scipy.stats import qmc

RANGES = {
    "lr": (0.01, 1.0),
    "dropout": (0.05, 0.5),
    "weight_decay": (1e-5, 0.1),
    "kl_weight": (1e-5, 1.0),
    "log_var_lr": (0.001, 0.1),
    "prior_std": (0.03, 1.0),
}
"""The ends of what is tried, by logarithm."""

MOMENTA, STARTS = (0.0, 0.5, 0.9), (1.0, 0.1, 0.0)
INFERENCES = ("variational", "natural_gradient", "ivon")
LOG_VARS = (-12.0, -3.0)


def between(u: float, name: str, most: float = math.inf) -> float:
    """Return a number of a range, up to at most, by its logarithm, to two digits."""
    low, high = RANGES[name][0], min(most, RANGES[name][1])
    return float(f"{math.exp(math.log(low) + u * math.log(high / low)):.2g}")


def common(u: list[float]) -> dict[str, Any]:
    """Return what every side varies; a half has no dropout."""
    return {
        "lr": between(u[0], "lr"),
        "momentum": MOMENTA[int(3 * u[1])],
        "dropout": between(2 * u[2] - 1, "dropout") if u[2] > 0.5 else 0.0,
        "start": STARTS[int(3 * u[3])],
    }


def gaussian(u: list[float]) -> dict[str, Any]:
    """Return KL weight, variances and prior of posteriors, a sixth with a KL weight by share."""
    low, high = LOG_VARS
    return {
        "kl_weight": "share" if u[0] > 5 / 6 else between(6 / 5 * u[0], "kl_weight"),
        "init_log_var": round(low + (high - low) * u[1], 1),
        "log_var_lr": between(u[2], "log_var_lr"),
        "prior_std": between(u[3], "prior_std"),
    }


def posterior(u: list[float]) -> dict[str, Any]:
    """Return a setting of posteriors."""
    return {"inference": INFERENCES[int(3 * u[8])], **gaussian(u[4:]), **common(u)}


def variances(u: list[float]) -> dict[str, Any]:
    """Return what posteriors alone have; a block of the grid has the rest."""
    return {"inference": INFERENCES[int(3 * u[4])], **gaussian(u)}


def plain(u: list[float]) -> dict[str, Any]:
    """Return a setting of posteriors without dropout, from the whole start."""
    return {
        "inference": INFERENCES[2 if u[6] < 1 / 6 else 1 if u[6] < 1 / 3 else 0],
        **gaussian(u),
        "lr": between(u[4], "lr", 0.5),
        "momentum": 0.9 if u[5] < 0.5 else 0.5,
        "dropout": 0.0,
        "start": 1.0,
    }


def point(u: list[float]) -> dict[str, Any]:
    """Return a setting of point weights."""
    return {**common(u), "weight_decay": between(u[4], "weight_decay")}


Side = tuple[int, Callable[[list[float]], dict[str, Any]]]

SIDES: Mapping[str, Side] = {
    "RKLB": (9, posterior),
    "RKLB, no dropout": (7, plain),
    "RKLB, FedAvg's steps": (5, variances),
    "RKLB, no search": (1, lambda u: {}),
    "FedAvg": (5, point),
    "SCAFFOLD": (5, point),
}
"""Each sample's number of dimensions, and its settings by a point of the unit cube."""


def tried(side: str, budget: int) -> list[dict[str, Any]]:
    """Return so many settings of a sample, a power of two."""
    dimensions, of = SIDES[side]
    points = qmc.Sobol(dimensions, seed=0).random(budget)
    return [of(row) for row in points.tolist()]
