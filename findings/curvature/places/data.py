"""Two tables as arrays: `python -m findings.curvature.places.data DATA_DIR`.

DATA_DIR holds the sets of UCI, and gets `breast-cancer.npz` and `wine.npz`. Three tenths of the
rows are for the test. Columns have mean 0 and variance 1 on the others. A wine's class is its
quality.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

TEST = 0.3


def write(file: Path, x: np.ndarray, labels: np.ndarray) -> None:
    """Write the rows of a table, split."""
    order = np.random.default_rng(0).permutation(len(x))
    test, train = np.split(order, [round(TEST * len(x))])
    x = ((x - x[train].mean(0)) / x[train].std(0)).astype(np.float32)
    y = np.unique(labels, return_inverse=True)[1]
    np.savez(file, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])


def main(folder: Path) -> None:
    """Write both tables."""
    write(folder / "breast-cancer.npz", *load_breast_cancer(return_X_y=True))
    wine = np.loadtxt(folder / "uci" / "wine-quality-red" / "data.txt")
    write(folder / "wine.npz", wine[:, :-1], wine[:, -1])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
