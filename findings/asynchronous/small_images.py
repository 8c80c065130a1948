"""Fashion-MNIST of 14 × 14 pixels: `python -m findings.asynchronous.small_images DATA`.

It writes `fashion14.npz` here: the first 6,000 images for training and 2,000 for the test, each
pixel the mean of four. DATA holds Fashion-MNIST.
"""

import sys
from pathlib import Path

import numpy as np

from fedbary.data.images import load
from findings.stream.streams import halved

TRAIN, TEST = 6_000, 2_000
"""Numbers of images."""


def main(data: Path, out: Path) -> None:
    """Write the file."""
    held = load("fashionmnist", str(data), download=False)
    np.savez(
        out / "fashion14.npz",
        x_train=halved(held.x_train.numpy())[:TRAIN],
        y_train=held.y_train.numpy()[:TRAIN],
        x_test=halved(held.x_test.numpy())[:TEST],
        y_test=held.y_test.numpy()[:TEST],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path())
