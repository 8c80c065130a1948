"""Worth of an image classifier's uncertainty beyond the plain test set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from fedbary.data.batches import CORRUPTIONS, STRENGTHS, corrupted, scale_pixels
from fedbary.predictive import Prediction
from fedbary.scores.metrics import auroc, evaluate
from fedbary.tasks._classes import ECE_BINS

REPEATS = 5
"""Number of sets of networks drawn from the final posterior for the spread of the ECE."""


def spread_over_draws(
    here: Prediction, labels: Tensor, redrawn: Callable[[int], Prediction]
) -> dict[str, float]:
    """Return the standard deviation of the ECE over draws of the networks.

    Parameters
    ----------
    here
        The prediction of the test images.
    labels
        Theirs, (N,).
    redrawn
        Returns the prediction of the i-th other draw.
    """
    draws = [here.probs, *(redrawn(i).probs for i in range(1, REPEATS))]
    return {
        f"ece_{bins}": float(np.std([evaluate(p, labels, bins)["ece"] for p in draws], ddof=1))
        for bins in ECE_BINS
    }


def on_corrupted(
    images: Tensor,
    labels: Tensor,
    predicted: Callable[[Tensor], Prediction],
    seed_of: Callable[[int, int], int],
    ece_bins: int,
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the scores on blurred, noisy and pale images, by kind and by strength from 1.

    Parameters
    ----------
    images
        The test images in their own units, (N, C, H, W).
    labels
        Theirs, (N,).
    predicted
        Predicts images, floats from 0 to 1.
    seed_of
        From the number of a kind and a strength to the source of the noise.
    ece_bins
        Bins of the ECE.
    """
    plain = scale_pixels(images.cpu())
    return {
        kind: {
            str(strength + 1): evaluate(
                predicted(corrupted(plain, kind, strength, seed_of(number, strength))).probs,
                labels,
                ece_bins,
            )
            for strength in STRENGTHS
        }
        for number, kind in enumerate(CORRUPTIONS)
    }


def detection(here: Prediction, there: Prediction) -> dict[str, float | None]:
    """Score uncertainties as detectors of foreign images (there) among test images (here).

    One network has no epistemic uncertainty to score. If the method has a distance to the classes,
    the distance is scored likewise.
    """
    found = {"auroc_entropy": auroc(here.entropy, there.entropy)}
    if 1 not in (here.networks, there.networks):
        found["auroc_epistemic"] = auroc(here.epistemic, there.epistemic)
    if here.distance is not None and there.distance is not None:
        found["auroc_mahalanobis"] = auroc(here.distance, there.distance)
    return found
