"""The papers' network: two convolutions and three fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fedbary.errors import SettingError
from fedbary.parts.parameters import BelowOne, Checked
from fedbary.variational.layers import VARIATIONAL, reset_layer

LAYERS = ("conv1", "conv2", "fc1", "fc2", "fc3")
KERNEL_SIZE = 5


@dataclass(frozen=True)
class Parameters(Checked):
    """Parameters of the network.

    Parameters
    ----------
    pixels
        Scale of the first layer's inputs, for images x in [0, 1]. unit: x. signed: 2x − 1.
    initialisation
        Initialisation of weights, the means of Gaussian ones included. he: He's, with variance
        2/fan_in and biases of 0, so that no layer of ReLUs starts dead. papers: the papers' own.
        See `fedbary.variational.layers.reset_layer`.
    dropout
        Probability that training drops an input of fc2 and fc3. Federated MC dropout is this with
        rule=FedAvg bayesian_layers=0 predictive=dropout.
    """

    pixels: Literal["unit", "signed"] = "unit"
    initialisation: Literal["he", "papers"] = "he"
    dropout: BelowOne = 0.0


def make(shape: Sequence[int], outputs: int, parameters: Parameters) -> CNN:
    """Return the network for images of a shape (C, H, W)."""
    return CNN(shape, outputs, parameters)


def reset(model: CNN, init_log_var: float, seed: int) -> None:
    """Initialise every tensor from a seed; see `fedbary.variational.layers.reset_layer`."""
    generator = Generator().manual_seed(seed)
    for name in LAYERS:
        reset_layer(model.get_submodule(name), init_log_var, generator, model.he)


class CNN(nn.Module):
    """conv 6@5×5, pool, conv 16@5×5, pool, 120, 84, outputs; ReLU between.

    The network of BA-BFL (Jamoussi et al.), LeNet-5's sizes without normalisation layers. Images
    with a side under 16 pixels are zero-padded by 2 in both convolutions, as 5×5 kernels need.

    Parameters
    ----------
    shape
        Channels, height and width of an image; two poolings need at least 4 pixels a side.
    outputs
        Number of classes, at least 2.
    parameters
        See there.

    Raises
    ------
    SettingError
        If one of them is out of its range.
    """

    def __init__(
        self, shape: Sequence[int], outputs: int, parameters: Parameters | None = None
    ) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 4:
            allowed = "channels, height and width, at least 4 pixels a side, for model=cnn"
            raise SettingError("image shape", shape, allowed)
        if outputs < 2:
            raise SettingError("number of classes", outputs, "at least 2")
        channels, height, width = shape
        padding = 2 if min(height, width) < 16 else 0
        shrink = KERNEL_SIZE - 1 - 2 * padding
        features = 16
        for side in (height, width):
            features *= ((side - shrink) // 2 - shrink) // 2
        self.signed_pixels = parameters is not None and parameters.pixels == "signed"
        self.he = parameters is None or parameters.initialisation == "he"
        self.conv1 = nn.Conv2d(channels, 6, KERNEL_SIZE, padding=padding)
        self.conv2 = nn.Conv2d(6, 16, KERNEL_SIZE, padding=padding)
        self.fc1 = nn.Linear(features, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, outputs)
        rate = parameters.dropout if parameters is not None else 0.0
        self.dropout = nn.Dropout(rate) if rate else nn.Identity()
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, outputs) for images (batch, C, H, W)."""
        return self._through(range(len(LAYERS)), self._seen(x))

    def can_split(self) -> bool:
        """Return whether plain layers are followed by variational ones alone, at least one."""
        gaussian = [isinstance(self.get_submodule(name), VARIATIONAL) for name in LAYERS]
        return any(gaussian) and all(gaussian[gaussian.index(True) :])

    def trunk(self, x: Tensor) -> Tensor:
        """Return the features that the plain layers make of images (batch, C, H, W)."""
        return self._through(range(self._num_plain()), self._seen(x))

    def head_logits(self, features: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Return logits (samples, batch, outputs) of the trunk's features under drawn weights.

        `weights` holds for each variational layer, in order, (samples, *weight shape).
        """
        x, first = features.unsqueeze(0), self._num_plain()
        for index, drawn in zip(range(first, len(LAYERS)), weights, strict=True):
            x = self._between(index, self.get_submodule(LAYERS[index]).forward_with(x, drawn))  # type: ignore[operator]
        return x

    def _num_plain(self) -> int:
        return sum(not isinstance(self.get_submodule(name), VARIATIONAL) for name in LAYERS)

    def _seen(self, x: Tensor) -> Tensor:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)  # channels last, also within a vmap
        return 2 * x - 1 if self.signed_pixels else x

    def _through(self, layers: range, x: Tensor) -> Tensor:
        for index in layers:
            x = self._between(index, self._modules[LAYERS[index]](x))  # type: ignore[misc]
        return x

    def _between(self, index: int, x: Tensor) -> Tensor:
        """Apply what follows layer `index`; pooling commutes with ReLU and leaves it less to do."""
        if index < 2:
            x = _pool(x)
        if index < len(LAYERS) - 1:
            x = functional.relu(x)
        if index == 1:
            return x.flatten(-3)
        return self.dropout(x) if index in (2, 3) else x


def _pool(x: Tensor) -> Tensor:
    """Take 2×2 maxima; without a gradient, on a CPU, maxima of slices are faster."""
    if x.requires_grad or x.is_cuda:
        return functional.max_pool2d(x.flatten(0, -4), 2).unflatten(0, x.shape[:-3])
    rows, columns = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    x = x[..., :rows, :columns]
    x = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(x[..., ::2], x[..., 1::2])
