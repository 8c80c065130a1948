"""The share of 95 % intervals that hold the truth: python -m findings.statistics.coverage.

Each federation is the mathematics of a run of `task=glm`, without messages:
tests/trained/test_coefficients.py and tests/tasks/test_glm.py hold that a run gives the same.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.special import expit

from fedbary.tasks import Contrasts
from fedbary.trained.coefficients import Factors, Site, tabulated

FILE, SEED = Path(__file__).with_name("coverage.jsonl"), 10
SLOPES, LEVEL, PRIOR, COUNT = np.array([0.6, -0.4, 0.2]), -0.5, 0.01, 1000
NONE = torch.full((1, 4), torch.nan, dtype=torch.float64)
PLAIN = Contrasts(
    ("a", "b", "c", "intercept"),
    ("per 1", "per 1", "per 1", ""),
    ("y",),
    torch.eye(4, dtype=torch.float64),
    torch.ones(1, 1, dtype=torch.float64),
    "odds",
    torch.zeros_like(NONE),
    NONE,
    NONE,
)
LEVEL_AND_NUMBERS = replace(PLAIN, units=("against no", *PLAIN.units[1:]))
SLOPES_ALONE = replace(
    PLAIN,
    terms=PLAIN.terms[:3],
    units=PLAIN.units[:3],
    columns=torch.eye(3, dtype=torch.float64),
    offset=PLAIN.offset[:, :3],
    rows=NONE[:, :3],
    events=NONE[:, :3],
)
KINDS = {
    "5 of 100 to 400 rows": ("alike", 5, (100, 400), 0, 0, False),
    "20 of 20 to 60 rows": ("alike", 20, (20, 60), 0, 0, False),
    "5 of 100 to 400 rows, one of 5, separated": ("alike", 6, (100, 400), 0, 0, True),
    "20 of 20 to 60 rows ": ("levels differ, τ = 1", 20, (20, 60), 1, 0, False),
    "6 of 100 to 400 rows": ("the slope differs, τ = 0.4", 6, (100, 400), 0, 0.4, False),
    "20 of 20 to 60 rows  ": ("the slope differs, τ = 0.4", 20, (20, 60), 0, 0.4, False),
    "20 of 20 to 60 rows, intercepts of sites": ("levels differ, τ = 1", 20, (20, 60), 1, 0, "own"),
    "20 of 50 to 150 rows": ("alike, of a rare level, few events", 20, (50, 150), 0, 0, "rare"),
}


def expanded(x, y, at):
    """Return the curvature and the slope of the negative log-likelihood."""
    p = expit(x @ at)
    return (x * (p * (1 - p))[:, None]).T @ x, x.T @ (p - y)


def mode(x, y):
    """Return the mode under the prior, by Newton's method with steps of at most 1."""
    at = np.zeros(x.shape[1])
    for _ in range(100):
        curvature, slope = expanded(x, y, at)
        step = np.linalg.solve(curvature + PRIOR * np.eye(len(at)), slope + PRIOR * at)
        at = at - step * min(1, 1 / np.abs(step).max())
        if np.abs(step).max() < 1e-10:
            break
    return at


def drawn(draw, sites, rows, of_levels, of_slopes, odd):
    """Return the columns and the outcomes of each site.

    What is odd: True: a tiny site of 5 rows, of which 94 % are separated. "rare": a tenth of rows
    have the level, and a twentieth the event.
    """
    held = []
    for number in range(sites):
        few = odd is True and number == 0
        x = draw.standard_normal((5 if few else draw.integers(*rows), 3))
        x = np.c_[x + 0.6 * draw.standard_normal((len(x), 1)), np.ones(len(x))]
        own = np.append(SLOPES, LEVEL + of_levels * draw.standard_normal())
        if odd == "rare":
            x[:, 0], own[3] = draw.random(len(x)) < 0.1, -3
        own[0] += of_slopes * draw.standard_normal()
        held.append((x, (draw.random(len(x)) < expit(x @ own)).astype(float)))
    return held


def federation(draw, *about):
    """Return the factors at the mode of all rows, and the slope and variance after one round.

    Of federations that are "own" in what is odd each site has an intercept of its own.
    """
    held = drawn(draw, *about)
    if about[-1] == "own":
        return of_intercepts(held)
    at, factors = mode(*map(np.concatenate, zip(*held, strict=True))), {}
    total, right = PRIOR * np.eye(4), np.zeros(4)
    for number, (x, y) in enumerate(held):
        alone = mode(x, y)
        curvature, slope = expanded(x, y, alone)
        total, right = total + curvature, right + curvature @ alone - slope
        own = curvature, slope + curvature @ (at - alone)
        factors[f"site {number}"] = Site(len(y), *expanded(x, y, at), alone=own)
    once = np.linalg.solve(total, right)
    told = LEVEL_AND_NUMBERS if about[-1] == "rare" else PLAIN
    return Factors(told, np.eye(4), at, PRIOR, factors), once[0], np.linalg.inv(total)[0, 0]


def of_intercepts(held):
    """Return the same with an intercept of each site's own, over which its likelihood is a maximum.

    Its precision is the Schur complement of that of slopes and intercept.
    """
    number = np.repeat(np.arange(len(held)), [len(y) for _, y in held])
    x = np.concatenate([x[:, :3] for x, _ in held])
    whole = mode(np.c_[x, np.eye(len(held))[number]], np.concatenate([y for _, y in held]))
    at, factors, total, right = whole[:3], {}, PRIOR * np.eye(3), np.zeros(3)

    def profiled(x, y, slopes, intercept):
        curvature, slope = expanded(x, y, np.append(slopes, intercept))
        across = curvature[:3, 3] / (curvature[3, 3] + PRIOR)
        return curvature[:3, :3] - np.outer(across, curvature[:3, 3]), slope[:3]

    for place, (x, y) in enumerate(held):
        alone = mode(x, y)
        curvature, slope = profiled(x, y, alone[:3], alone[3])
        total, right = total + curvature, right + curvature @ alone[:3] - slope
        own = curvature, slope + curvature @ (at - alone[:3])
        here = profiled(x, y, at, whole[3 + place])
        factors[f"site {place}"] = Site(len(y), *here, alone=own)
    once = np.linalg.solve(total, right)
    return Factors(SLOPES_ALONE, np.eye(3), at, PRIOR, factors), once[0], np.linalg.inv(total)[0, 0]


def main():
    """Simulate the kinds of federations that are not in the file yet."""
    known = pd.read_json(FILE, lines=True) if FILE.exists() else pd.DataFrame({"kind": []})
    for name, (differ, *about) in KINDS.items():
        if name in set(known["kind"]):
            continue
        draw = np.random.default_rng(SEED)
        counts = dict.fromkeys(("once", "pooled", "random", "warned", "taken"), 0)
        for _ in range(COUNT):
            factors, once, var = federation(draw, *about)
            line = tabulated(factors, 0.95).iloc[0]
            pooled = line["lower 95 %"] < SLOPES[0] < line["upper 95 %"]
            random = line["HK lower 95 %"] < SLOPES[0] < line["HK upper 95 %"]
            warned = line["p differ"] < 0.05 or factors.score()[0] < 0.05
            found = abs(once - SLOPES[0]) < 1.96 * var**0.5, pooled, random, warned
            for key, value in zip(counts, (*found, random if warned else pooled), strict=True):
                counts[key] += bool(value)
        rates = {key: 100 * count / COUNT for key, count in counts.items()}
        with FILE.open("a") as file:
            file.write(json.dumps({"kind": name, "sites": name.strip(), "differ": differ, **rates}))
            file.write("\n")


if __name__ == "__main__":
    main()
