"""Scores and quantiles of conformal sets, in NumPy and one by one."""

import math
from fractions import Fraction

import numpy as np
import torch

from fedbary.predictive.conformal import FREE_RANKS, PENALTY, counted, true_class_bins

SCORES = ("lac", "aps", "raps")


def predicted(seed, examples, classes=6, sureness=3.0):
    """Probabilities that are as sure as the labels allow, and the labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = sureness * torch.randn(examples, classes, generator=generator)
    probs = logits.softmax(-1)
    return probs, torch.multinomial(probs, 1, generator=generator)[:, 0]


def held_out_histogram(score, probs, y, by_class=False):
    """The histogram of the true classes' scores, a row for all or one a class."""
    rows = y if by_class else torch.zeros_like(y)
    return counted(true_class_bins(score, probs, y), rows, probs.shape[1] if by_class else 1)


def scores_by_hand(score, probs):
    """The scores of all classes, (N, classes), in NumPy and one by one."""
    found = np.zeros(probs.shape)
    for n, row in enumerate(probs.double().numpy()):
        for c, p in enumerate(row):
            above = [q for j, q in enumerate(row) if q > p or (q == p and j < c)]
            extra = PENALTY * max(0, len(above) + 1 - FREE_RANKS)
            largest = PENALTY * (len(row) - FREE_RANKS)
            by_name = {
                "lac": 1 - p,
                "aps": sum(above),
                "raps": (sum(above) + extra) / (1 + largest),
            }
            found[n, c] = by_name[score]
    return found


def quantile_by_hand(scores, level):
    """The ⌈(n + 1) level⌉-th smallest score; infinite where there are fewer."""
    rank = math.ceil((len(scores) + 1) * Fraction(str(level)))
    return np.inf if rank > len(scores) else np.sort(scores)[rank - 1]
