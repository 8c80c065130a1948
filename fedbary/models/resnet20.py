"""ResNet-20 for small images, with group norm in place of batch norm.

A 3×3 convolution comes first. Three stages follow, each of three residual blocks of two 3×3
convolutions. They have 16, 32 and 64 channels, and half the side from stage to stage. The mean over
the pixels and one linear layer come last. Shortcuts have no parameters: where the shape changes
they take every second pixel and add channels of zeros.

Batch norm's running moments are those of one client's data, and its means over clients with
different data are nobody's; group norm has none (Hsieh et al. 2020).

References: He, Zhang, Ren and Sun 2016, section 4.2; Wu and He 2018 (group norm).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from fedbary.errors import SettingError
from fedbary.parts.parameters import Checked, Count

STAGES, BLOCKS = 3, 3


@dataclass(frozen=True)
class Parameters(Checked):
    """Parameters of the network.

    Parameters
    ----------
    pixels
        Scale of the first layer's inputs, for images x in [0, 1]. unit: x. signed: 2x − 1.
    width
        Channels of the first stage, a multiple of `norm_groups`; each further stage has twice as
        many.
    norm_groups
        Groups of channels that are normalised together.
    """

    pixels: Literal["unit", "signed"] = "unit"
    width: Count = 16
    norm_groups: Count = 8


class Signed(nn.Module):
    """Takes pixels from [0, 1] to [−1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return 2x − 1."""
        return 2 * x - 1


class Block(nn.Module):
    """relu(shortcut(x) + norm2(conv2(relu(norm1(conv1(x))))))."""

    def __init__(self, channels: int, out_channels: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, out_channels)
        self.stride, self.added = stride, out_channels - channels

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, out_channels, H / stride, W / stride) for x (batch, channels, H, W)."""
        out = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        shortcut = x[..., :: self.stride, :: self.stride]
        if self.added:
            before = self.added // 2
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, before, self.added - before))
        return functional.relu(out + shortcut)


def make(shape: Sequence[int], outputs: int, parameters: Parameters) -> nn.Sequential:
    """Return the network for images of a shape (C, H, W), its convolutions initialised as He's."""
    width, groups = parameters.width, parameters.norm_groups
    if len(shape) != 3:
        raise SettingError("image shape", shape, "channels, height and width")
    if width % groups:
        raise SettingError("width", width, f"a multiple of norm_groups, {groups}, from 1")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if parameters.pixels == "signed":
        layers["signed"] = Signed()
    layers["conv"] = nn.Conv2d(shape[0], width, 3, padding=1, bias=False)
    layers["norm"] = nn.GroupNorm(groups, width)
    layers["relu"] = nn.ReLU()
    channels = width
    for stage in range(STAGES):
        for block in range(BLOCKS):
            out_channels, stride = width * 2**stage, 2 if stage and not block else 1
            layers[f"block{stage + 1}_{block + 1}"] = Block(channels, out_channels, stride, groups)
            channels = out_channels
    layers["pool"], layers["flatten"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    layers["fc"] = nn.Linear(channels, outputs)
    network = nn.Sequential(layers)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    return network
