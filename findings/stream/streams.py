"""Streams of five tasks, whose data are new: classes in pairs, and images that turn in steps."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.ndimage import rotate
from sklearn.datasets import load_digits

from fedbary.data.images import load

TASKS, DEGREES = 5, 20
IMAGES: Mapping[str, int] = {"fashion": 3_000}
USUAL, TESTED = 6_000, 1_000
"""Numbers of images of a stream for training and validation, by the data, and for the test."""

STREAMS = ("digits pairs", "digits turns", "fashion pairs", "fashion turns", "features pairs")
"""By the data and what changes: Fashion-MNIST, and features of CIFAR-10, of `findings.features`."""

Arrays = Mapping[str, np.ndarray]


@lru_cache
def images(data: str, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs and labels for training and validation, and those of the test."""
    if data == "digits":
        held = load_digits()
        order = np.random.default_rng(0).permutation(len(held.target))
        x, y = (held.images[order, None] / 16 * 255).astype(np.uint8), held.target[order]
        tested = len(y) // 5
        return x[tested:], y[tested:], x[:tested], y[:tested]
    names = ("x_train", "y_train", "x_test", "y_test")
    if data == "fashion":
        read = load("fashionmnist", folder, download=True)
        x, y, xt, yt = (getattr(read, name).numpy() for name in names)
        x, xt = halved(x), halved(xt)
    else:
        with np.load(folder / "features64.npz") as file:
            x, y, xt, yt = (file[name] for name in names)
    return x, y, xt[:TESTED], yt[:TESTED]


def stream(name: str, seed: int, folder: Path) -> list[Arrays]:
    """Return each task's arrays: x and y with the endings train, valid and test.

    A seed draws the images; a fifth of them is for validation. The test is that of every seed.
    """
    data, change = name.split()
    x, y, x_test, y_test = images(data, folder)
    order = np.random.default_rng(seed).permutation(len(y))[: IMAGES.get(data, USUAL)]
    cut = len(order) // 5
    parts = {
        "valid": (x[order[:cut]], y[order[:cut]]),
        "train": (x[order[cut:]], y[order[cut:]]),
        "test": (x_test, y_test),
    }
    tasks: list[dict[str, np.ndarray]] = [{} for _ in range(TASKS)]
    for part, (inputs, labels) in parts.items():
        for task, held in enumerate(tasks):
            rows: np.ndarray | slice = slice(task, None, TASKS)
            if change == "pairs":
                rows = np.isin(labels, (2 * task, 2 * task + 1))
            held[f"x_{part}"], held[f"y_{part}"] = inputs[rows], labels[rows]
            if change == "turns":
                held[f"x_{part}"] = turned(inputs[rows], DEGREES * task)
    return [*tasks]


def turned(x: np.ndarray, degrees: int) -> np.ndarray:
    """Return images (n, 1, height, width) turned by so many degrees."""
    by = rotate(x.astype(float), degrees, axes=(2, 3), reshape=False, order=1)
    return by.clip(0, 255).astype(np.uint8)


def halved(x: np.ndarray) -> np.ndarray:
    """Return images (n, 1, height, width) of half the height and width: means of four pixels."""
    count, _, height, width = x.shape
    fours = x.reshape(count, 1, height // 2, 2, width // 2, 2)
    return fours.mean((3, 5)).round().astype(np.uint8)
