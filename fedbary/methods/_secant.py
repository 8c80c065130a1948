"""The largest curvature of a loss where the weights are, by a power iteration on secants.

With g the gradient of a batch's loss, a secant along a unit vector v is

    (g(θ + δ v) − g(θ − δ v)) / 2δ  ≈  H v.

The next v is its direction. δ is the width of a posterior of n examples, 1/√(n h). So kinks and
saturation count as far as a chain meets them. Each probe has a batch of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Generator, Tensor

from fedbary.inference.shared.vectors import Flat

PROBES = 16
"""Steps of the power iteration; the mean of the last half counts."""

_TINY = 1e-12


def largest_curvature(
    theta: Flat,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    examples: int,
    generator: Generator,
) -> float:
    """Return the largest curvature of a loss by some weights, 0 where it is flat.

    Parameters
    ----------
    theta
        The weights, which are the same afterwards; their gradients are written over.
    loss
        Loss of a batch (x, y) at the weights as they are; nothing in it may be random.
    batches
        At most `PROBES` are taken.
    examples
        n, which sets the secants' length.
    generator
        The source of the first direction.
    """
    here, found = theta.value.clone(), []
    direction = torch.empty_like(here).normal_(generator=generator)
    direction /= direction.norm()
    length = 1 / math.sqrt(examples)
    for (x, y), _ in zip(batches, range(PROBES), strict=False):
        gradients = []
        for side in (length, -length):
            theta.value.copy_(here).add_(direction, alpha=side)
            theta.grad.zero_()
            loss(x, y).backward()
            gradients.append(theta.grad.clone())
        bent = (gradients[0] - gradients[1]) / (2 * length)
        norm = float(bent.norm())
        if not _TINY < norm < math.inf:
            break
        found.append(abs(float(direction @ bent)))
        direction, length = bent / norm, 1 / math.sqrt(examples * norm)
    theta.value.copy_(here)
    last = found[len(found) // 2 :]
    return sum(last) / len(last) if last else 0.0
