"""The 8×8 handwritten digits that scikit-learn carries: real data, no download.

1,797 images with values 0..16, scaled to [0, 1]. The test set is every fifth image of each class in
the order of the file: 360 for testing, 1,437 for training, always the same. The file is read from
scikit-learn's folder without importing scikit-learn, which would take longer than training.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np


def read(data_dir: Path, download: bool) -> dict[str, Any]:
    """Return the four arrays; they come with scikit-learn, so neither argument matters."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise FileNotFoundError("scikit-learn, which carries the digits, is not installed")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 8, 8) / 16, table[:, -1].astype(np.int64)
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[np.argsort(labels, kind="stable")[::5]] = True
    return {
        "x_train": images[~held_out],
        "y_train": labels[~held_out],
        "x_test": images[held_out],
        "y_test": labels[held_out],
    }
