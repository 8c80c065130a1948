"""Fashion-MNIST: 60,000 + 10,000 grey images of clothing, 28×28, 10 classes.

Source: H. Xiao, K. Rasul and R. Vollgraf, arXiv:1708.07747, 2017. Files as torchvision keeps them:
``<data_dir>/FashionMNIST/raw``. They are read here, because importing torchvision takes more time
and memory than the images do.
"""

from pathlib import Path
from typing import Any

import numpy as np

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
    "Ankle boot",
)  # fmt: skip

FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def read(data_dir: Path, download: bool) -> dict[str, Any]:
    """Return the arrays and the classes; torchvision fetches the files if they are not there."""
    raw = data_dir / "FashionMNIST" / "raw"
    if not all((raw / file).is_file() for file in FILES.values()):
        from torchvision.datasets import FashionMNIST

        FashionMNIST(data_dir, download=download)
    return {"classes": CLASSES, **{array: _idx(raw / file) for array, file in FILES.items()}}


def _idx(path: Path) -> np.ndarray:
    """Return an idx file of bytes: magic number, big-endian length of each axis, values."""
    num_axes = int(np.fromfile(path, np.uint8, count=4)[3])
    shape = np.fromfile(path, ">i4", count=num_axes, offset=4)
    return np.fromfile(path, np.uint8, offset=4 + 4 * num_axes).reshape(shape)
