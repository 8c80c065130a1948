"""CIFAR-10: 50,000 + 10,000 colour photographs, 32×32, 10 classes; augmented in training.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. Files as
torchvision keeps them: ``<data_dir>/cifar-10-batches-py``.
"""

from pathlib import Path
from typing import Any

AUGMENT = True


def read(data_dir: Path, download: bool) -> dict[str, Any]:
    """Return the four arrays and the classes, from torchvision's files."""
    from torchvision.datasets import CIFAR10

    train = CIFAR10(data_dir, train=True, download=download)
    test = CIFAR10(data_dir, train=False, download=download)
    return {
        "x_train": train.data,
        "y_train": train.targets,
        "x_test": test.data,
        "y_test": test.targets,
        "classes": train.classes,
    }
