"""SVHN: 73,257 + 26,032 colour photographs of house-number digits, 32×32, 10 classes.

Source: Y. Netzer et al., Reading Digits in Natural Images, NIPS workshop, 2011. Files as
torchvision keeps them: ``<data_dir>/train_32x32.mat`` and ``test_32x32.mat``.
"""

from pathlib import Path
from typing import Any


def read(data_dir: Path, download: bool) -> dict[str, Any]:
    """Return the four arrays, from torchvision's files; the digit 0 has label 0."""
    from torchvision.datasets import SVHN

    train = SVHN(data_dir, split="train", download=download)
    test = SVHN(data_dir, split="test", download=download)
    return {
        "x_train": train.data,
        "y_train": train.labels,
        "x_test": test.data,
        "y_test": test.labels,
    }
