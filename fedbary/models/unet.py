"""A small U-Net: a class for each pixel, from what lies around it near and far.

It has two convolutions at full size, two at half and two at a quarter of it. On the way up each
level sees its own features of the way down beside those from below. A 1×1 convolution answers.
Group norm has no running moments, which would be one client's. Sides are multiples of 4.

Reference: Ronneberger, Fischer and Brox, U-Net: Convolutional Networks for Biomedical Image
Segmentation, MICCAI 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbary.errors import SettingError
from fedbary.parts.parameters import Checked, Count


@dataclass(frozen=True)
class Parameters(Checked):
    """Parameters of the network.

    Parameters
    ----------
    channels
        Channels at full size, a multiple of `norm_groups`; each lower level has twice as many.
    norm_groups
        Groups of channels that are normalised together.
    """

    channels: Count = 8
    norm_groups: Count = 8


def make(shape: Sequence[int], outputs: int, parameters: Parameters) -> UNet:
    """Return the network for images of a shape (C, H, W)."""
    channels, groups = parameters.channels, parameters.norm_groups
    if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
        raise SettingError("image shape", shape, "channels, and sides that are multiples of 4")
    if channels % groups:
        raise SettingError("channels", channels, f"a multiple of norm_groups, {groups}, from 1")
    return UNet(shape[0], outputs, channels, groups)


class UNet(nn.Module):
    """Answers images (batch, C, H, W) with logits (batch, outputs, H, W)."""

    def __init__(self, colours: int, outputs: int, width: int, groups: int) -> None:
        super().__init__()
        self.down = _convolutions(colours, width, groups)
        self.below = _convolutions(width, 2 * width, groups)
        self.bottom = _convolutions(2 * width, 4 * width, groups)
        self.above = _convolutions(6 * width, 2 * width, groups)
        self.up = _convolutions(3 * width, width, groups)
        self.answer = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a logit a class for each pixel."""
        near = self.down(x)
        middle = self.below(functional.max_pool2d(near, 2))
        far = self.bottom(functional.max_pool2d(middle, 2))
        middle = self.above(torch.cat([middle, functional.interpolate(far, scale_factor=2)], 1))
        near = self.up(torch.cat([near, functional.interpolate(middle, scale_factor=2)], 1))
        answer: Tensor = self.answer(near)
        return answer


def _convolutions(channels: int, width: int, groups: int) -> nn.Sequential:
    layers = [
        layer
        for first in (channels, width)
        for layer in (
            nn.Conv2d(first, width, 3, padding=1, bias=False),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
        )
    ]
    for layer in layers[::3]:
        nn.init.kaiming_normal_(layer.weight)  # type: ignore[arg-type]
    return nn.Sequential(*layers)
