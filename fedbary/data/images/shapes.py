"""Shapes on noise: discs, frames and crosses on 16×16 grey pictures, up to three in each.

It is a toy set for segmentation and multi-label classification. It is drawn here, always the same.
`read_masks` labels each pixel with its shape, `read_sets` each picture with the visible shapes.
Later shapes cover earlier ones. Their grey does not depend on their kind. 800 pictures for
training, 200 for testing.
"""

from pathlib import Path
from typing import Any

import numpy as np

SIDE, TRAINING, TESTING = 16, 800, 200
KINDS = ("disc", "frame", "cross")
NOISE_STD = 0.1


def read_masks(data_dir: Path, download: bool) -> dict[str, Any]:
    """Return the four arrays, labels N×H×W: 0 the background, then the kinds."""
    x, masks = drawn()
    return _parted(x, masks, ("background", *KINDS))


def read_sets(data_dir: Path, download: bool) -> dict[str, Any]:
    """Return the four arrays, labels N×3: whether a kind is in sight."""
    x, masks = drawn()
    kinds = np.arange(1, 1 + len(KINDS))
    return _parted(x, (masks[..., None] == kinds).any((1, 2)).astype(np.int64), KINDS)


def drawn() -> tuple[np.ndarray, np.ndarray]:
    """Return pictures (N, H, W), floats from 0 to 1, and their masks (N, H, W)."""
    rng = np.random.default_rng(0)
    count = TRAINING + TESTING
    x, masks = np.full((count, SIDE, SIDE), 0.4), np.zeros((count, SIDE, SIDE), np.int64)
    down, right = np.mgrid[:SIDE, :SIDE]
    for picture, mask in zip(x, masks, strict=True):
        for _ in range(rng.integers(0, 4)):
            kind, radius = rng.integers(1, 1 + len(KINDS)), rng.integers(2, 5)
            (y, z), grey = rng.integers(radius, SIDE - radius, 2), rng.choice([0.1, 0.7, 0.9])
            a, b = np.abs(down - y), np.abs(right - z)
            inside = (
                a**2 + b**2 <= radius**2,
                np.maximum(a, b) == radius,
                (np.minimum(a, b) == 0) & (np.maximum(a, b) <= radius),
            )[kind - 1]
            picture[inside], mask[inside] = grey, kind
    return np.clip(x + NOISE_STD * rng.standard_normal(x.shape), 0, 1), masks


def _parted(x: np.ndarray, y: np.ndarray, classes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "x_train": x[:TRAINING],
        "y_train": y[:TRAINING],
        "x_test": x[TRAINING:],
        "y_test": y[TRAINING:],
        "classes": classes,
    }
