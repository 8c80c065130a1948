"""The papers' network: two convolutions, three fully connected layers, the last n variational."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fedbary.errors import SettingError
from fedbary.layers import (
    VARIATIONAL,
    VariationalConv2d,
    VariationalLinear,
    reset_layer,
    sample_weights,
)

LAYERS = ("conv1", "conv2", "fc1", "fc2", "fc3")
KERNEL_SIZE = 5


def _pool(x: Tensor) -> Tensor:
    """Take 2×2 maxima; without a gradient, on a CPU, maxima of slices are faster."""
    if x.requires_grad or x.is_cuda:
        return functional.max_pool2d(x.flatten(0, -4), 2).unflatten(0, x.shape[:-3])
    rows, columns = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    x = x[..., :rows, :columns]
    x = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(x[..., ::2], x[..., 1::2])


class BayesianCNN(nn.Module):
    """conv 6@5×5, pool, conv 16@5×5, pool, 120, 84, classes; ReLU; the last n layers variational.

    The network of BA-BFL (Jamoussi et al.), LeNet-5's sizes without normalisation layers. Images
    with a side under 16 pixels are zero-padded by 2 in both convolutions, as 5×5 kernels need.

    Parameters
    ----------
    shape
        Channels (1 or 3), height and width of an image, 8 to 64 pixels each.
    num_classes
        Number of outputs, at least 2.
    bayesian_layers
        n ∈ {0, …, 5}: how many of the last layers have Gaussian weights; 0 is a plain CNN.
    signed_pixels
        Whether the first layer sees 2x − 1 of its input x, in [-1, 1] for images in [0, 1].

    Raises
    ------
    SettingError
        If one of them is out of its range.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        num_classes: int,
        bayesian_layers: int,
        signed_pixels: bool = False,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        if bayesian_layers not in range(len(LAYERS) + 1):
            raise SettingError("bayesian_layers", bayesian_layers, "a whole number from 0 to 5")
        if channels not in (1, 3) or not (8 <= height <= 64 and 8 <= width <= 64):
            raise SettingError("image shape", shape, "1 or 3 channels, 8 to 64 pixels a side")
        if num_classes < 2:
            raise SettingError("number of classes", num_classes, "at least 2")
        padding = 2 if min(height, width) < 16 else 0
        shrink = KERNEL_SIZE - 1 - 2 * padding
        features = 16
        for side in (height, width):
            features *= ((side - shrink) // 2 - shrink) // 2
        self.signed_pixels = signed_pixels
        self.num_trunk = len(LAYERS) - bayesian_layers
        convolutions = {"conv1": (channels, 6), "conv2": (6, 16)}
        linears = {"fc1": (features, 120), "fc2": (120, 84), "fc3": (84, num_classes)}
        for index, name in enumerate(LAYERS):
            variational = index >= self.num_trunk
            layer: nn.Module
            if name in convolutions:
                kind = VariationalConv2d if variational else nn.Conv2d
                layer = kind(*convolutions[name], KERNEL_SIZE, padding=padding)
            else:
                layer = (VariationalLinear if variational else nn.Linear)(*linears[name])
            self.add_module(name, layer)
        self.to(memory_format=torch.channels_last)

    @property
    def head(self) -> list[VariationalLinear | VariationalConv2d]:
        """The variational layers, in order."""
        return [layer for layer in self.children() if isinstance(layer, VARIATIONAL)]

    def reset(self, init_log_var: float, seed: int) -> None:
        """Initialise every tensor from a seed; see `fedbary.layers.reset_layer`."""
        generator = Generator().manual_seed(seed)
        for layer in self.children():
            reset_layer(layer, init_log_var, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, classes) for images (batch, C, H, W)."""
        x = self.trunk(x)
        for index in range(self.num_trunk, len(LAYERS)):
            x = self._between(index, self._modules[LAYERS[index]](x))  # type: ignore[misc]
        return x

    def trunk(self, x: Tensor) -> Tensor:
        """Return the features that the deterministic layers make of images (batch, C, H, W)."""
        x = x.contiguous(memory_format=torch.channels_last)
        if self.signed_pixels:
            x = 2 * x - 1
        for index in range(self.num_trunk):
            x = self._between(index, self._modules[LAYERS[index]](x))  # type: ignore[misc]
        return x

    def sample_head(self, samples: int, generator: Generator | None) -> list[Tensor]:
        """Draw `samples` networks: for each variational layer (samples, *weight shape)."""
        return [sample_weights(layer, samples, generator) for layer in self.head]

    def head_logits(self, features: Tensor, weights: list[Tensor]) -> Tensor:
        """Return logits (samples, batch, classes) under drawn weights for the trunk's features."""
        x = features.unsqueeze(0)
        for index, layer, drawn in zip(
            range(self.num_trunk, len(LAYERS)), self.head, weights, strict=True
        ):
            x = self._between(index, layer.forward_with(x, drawn))
        return x

    def _between(self, index: int, x: Tensor) -> Tensor:
        """Apply what follows layer `index`; pooling commutes with ReLU and leaves it less to do."""
        if index < 2:
            x = _pool(x)
        if index < len(LAYERS) - 1:
            x = functional.relu(x)
        return x.flatten(-3) if index == 1 else x
