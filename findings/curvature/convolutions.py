"""Federations of a small network with convolutions, side by side."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv2d, group_norm

from fedbary.data.batches import scale_pixels
from findings.curvature.side_by_side import SideBySide, Weights


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
        *before, linear, last = leaves
        w, b, scale, shift, w2, b2, scale2, shift2 = [t.flatten(0, 1) for t in before]
        count = len(last)
        through = conv2d(x, w, b, 2, 1)
        through = group_norm(through, 2 * count, scale, shift).relu()
        through = conv2d(through, w2, b2, 2, 1, groups=count)
        through = group_norm(through, 4 * count, scale2, shift2).relu()
        entering = through.reshape(len(x), count, -1).transpose(0, 1)
        logits = torch.baddbmm(last[:, None], entering, linear)
        return logits.detach(), lambda slopes: [*torch.autograd.grad(logits, leaves, slopes)]
