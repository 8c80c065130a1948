"""Intervals where cells of a column are missing: python -m findings.statistics.missing.

42 % of the cells of `a` are missing, the more the larger its neighbour `b` is. `missing=drop` fits
the rows without an empty cell: tests/tasks/test_glm.py holds that. Means and indicators are what
`task=glm` refuses.
"""

import json
from pathlib import Path

import numpy as np
from scipy.special import expit

from findings.statistics.coverage import PRIOR, expanded, mode

FILE, SEED, COUNT, ROWS, SLOPES = (
    Path(__file__).with_name("missing.jsonl"),
    10,
    400,
    600,
    (0.6, 0.4),
)
WAYS = ("drop", "mean", "indicator")


def table(draw):
    """Return columns a and b, correlated by 0.6, the outcome, and which cells of a are missing."""
    b = draw.standard_normal(ROWS)
    a = 0.6 * b + 0.8 * draw.standard_normal(ROWS)
    y = draw.random(ROWS) < expit(SLOPES[0] * a + SLOPES[1] * b - 0.5)
    return a, b, y.astype(float), draw.random(ROWS) < expit(1.5 * b - 0.45)


def columns(way, a, b, y, gone):
    """Return the columns and outcomes of a way to treat missing cells."""
    ones, filled = np.ones(ROWS), np.where(gone, a[~gone].mean(), a)
    if way == "drop":
        return np.stack([a, b, ones], 1)[~gone], y[~gone]
    more = [gone.astype(float)] if way == "indicator" else []
    return np.stack([filled, b, ones, *more], 1), y


def rates(seed, count):
    """Yield, by way, the percentages of intervals of both slopes that hold the truth."""
    draw, held, share = np.random.default_rng(seed), {way: np.zeros(2) for way in WAYS}, 0.0
    for _ in range(count):
        made = table(draw)
        share += 100 * made[-1].mean() / count
        for way in WAYS:
            x, y = columns(way, *made)
            at = mode(x, y)
            whole = expanded(x, y, at)[0] + PRIOR * np.eye(len(at))
            std = np.sqrt(np.diag(np.linalg.inv(whole)))[:2]
            held[way] += 100 * (np.abs(at[:2] - SLOPES) < 1.959964 * std) / count
    for way, (column, neighbour) in held.items():
        yield {"way": way, "column": column, "neighbour": neighbour, "share": share}


if __name__ == "__main__":
    FILE.write_text("".join(json.dumps(line) + "\n" for line in rates(SEED, COUNT)))
