"""Fashion-MNIST of 14 × 14 pixels: `python -m findings.asynchronous.small_images DATA`.

It writes `fashion14.npz` here: the first 6,000 images for training and 2,000 for the test, each
pixel the mean of four. DATA holds Fashion-MNIST.
"""

import sys
from pathlib import Path

import numpy as np

from fedbary.data.images import load

COUNTS = {"train": 6_000, "test": 2_000}
"""Numbers of images."""


def main(data: Path, out: Path) -> None:
    """Write the file."""
    held, found = load("fashionmnist", str(data), download=False), {}
    for part, count in COUNTS.items():
        x, y = (getattr(held, f"{of}_{part}").numpy()[:count] for of in "xy")
        found[f"x_{part}"] = x.reshape(count, 1, 14, 2, 14, 2).mean((3, 5)).round().astype(np.uint8)
        found[f"y_{part}"] = y
    np.savez(out / "fashion14.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path())
