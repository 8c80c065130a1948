"""Writes `cifar10-few.npz`, some images of CIFAR-10: `python -m findings.adapters.few DATA_DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

TRAIN, TEST = 3000, 300
"""How many images it has: the first of each part of CIFAR-10."""


def main(folder: Path) -> None:
    """Write the file beside `cifar10.npz`."""
    with np.load(folder / "cifar10.npz") as whole:
        counts = {"train": TRAIN, "test": TEST}
        few = {
            f"{of}_{part}": whole[f"{of}_{part}"][:n] for part, n in counts.items() for of in "xy"
        }
    np.savez_compressed(folder / "cifar10-few.npz", **few)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
