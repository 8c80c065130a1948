"""Federations of a small network with convolutions, side by side."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv2d, group_norm

from fedbary.data.batches import scale_pixels
from findings.curvature.side_by_side import SideBySide, Weights

Found = Callable[[int, Callable[[Tensor, Tensor], Tensor], Tensor], Tensor]
"""What a layer's weights do to inputs, by their place and their product with inputs."""


class Convolutions(SideBySide):
    """Several federations of `findings.curvature.networks.narrow` between two rounds.

    A convolution of all networks is one with a group for each. Scales and shifts of group norm are
    points.
    """

    axes = (0,) * 10
    layers = tuple("01347")
    norms = 2, 3, 6, 7

    def begun(self) -> Weights:
        """Return the first weights of one network; those of the linear layer (inputs, classes)."""
        *before, linear, last = self.means()
        return [*before, linear.t(), last]

    def inputs(self, x: Tensor) -> Tensor:
        """Return images (N, C, H, W)."""
        return scale_pixels(x)

    def outputs(self, weights: Weights, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Weights]]:
        """Return logits (M, N, classes), and what takes slopes by them to slopes by weights."""
        leaves = [t.detach().requires_grad_() for t in weights]
        logits = self.through(leaves, x, lambda place, product, x: product(x, leaves[place]))
        return logits.detach(), lambda slopes: [*torch.autograd.grad(logits, leaves, slopes)]

    def through(self, weights: Weights, x: Tensor, found: Found) -> Tensor:
        """Return logits (M, N, classes); `found` gives what the weights of a layer do to inputs."""
        count = len(weights[-1])

        def convolved(x: Tensor, place: int, groups: int, norms: int) -> Tensor:
            def product(x: Tensor, weight: Tensor) -> Tensor:
                return conv2d(x, weight.flatten(0, 1), None, 2, 1, groups=groups)

            bias, scale, shift = (t.flatten() for t in weights[place + 1 : place + 4])
            entering = found(place, product, x) + bias[:, None, None]
            return group_norm(entering, norms * count, scale, shift).relu()

        entering = convolved(convolved(x, 0, 1, 2), 4, count, 4)
        entering = entering.reshape(len(x), count, -1).transpose(0, 1)
        return found(8, torch.matmul, entering) + weights[-1][:, None]
