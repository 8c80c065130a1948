"""Batches of inputs: drawn from a client's tensor, augmented, scaled for the network."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

PAD = 4
OFFSETS = 2 * PAD + 1
UNMOVED = 2 * (OFFSETS * PAD + PAD)
"""The crop that leaves an image as it is; an odd number also flips it."""

Augment = bool | Literal["crop", "flip"]
"""Random changes of training images: both (True), one of them, or none (False)."""


def inputs(batch: Tensor) -> Tensor:
    """Return images as a network's input in float32: uint8 divided by 255, floats unchanged.

    The result has the shape of ``batch``, and lies in [0, 1] for uint8 images. As in the papers, it
    is not normalised by mean and standard deviation.
    """
    return batch.float().div_(255) if batch.dtype == torch.uint8 else batch


def draw_crops(count: int, augment: Augment, generator: torch.Generator) -> Tensor:
    """Draw a flip and a crop for each of ``count`` images: (count,) int64, see `batch_source`.

    The generator is on the CPU, so that one seed gives the same crops on every device. Without
    augmentation it is not used.
    """
    if not augment:
        return torch.zeros(count, dtype=torch.int64)
    if augment == "flip":
        return UNMOVED + torch.randint(2, (count,), generator=generator)
    if augment == "crop":
        return 2 * torch.randint(OFFSETS**2, (count,), generator=generator)
    return torch.randint(2 * OFFSETS**2, (count,), generator=generator)


def batch_source(x: Tensor, augment: Augment) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that takes a batch of images.

    Called as ``take(indices, crops)`` it returns the images of those indices, (B, C, H, W),
    of the type and on the device of ``x``, in memory of their own. Typical use::

        take = batch_source(x, dataset.augment)
        for indices in torch.randperm(len(x), generator=generator).split(64):
            crops = draw_crops(len(indices), dataset.augment, generator)
            logits = model(inputs(take(indices, crops)))

    Augmentation is the CIFAR-10 protocol of the papers' code, independent for each image: flip left
    to right with probability one half, reflect-pad by 4 pixels, crop back at an offset uniform over
    the 9 × 9 possible ones. "flip" does the first alone, "crop" the others. The padded images and
    their mirror images are made once, and take about three times the memory of ``x``. A batch is
    then one copy, seen as a strided view; `inputs` makes bytes contiguous.

    Parameters
    ----------
    x : Tensor
        Images, (N, C, H, W), on any device; with augmentation H and W are above 4. Not changed.
    augment : Augment
        True: crop and flip; "crop" or "flip": one of them; False: neither, and ``crops`` is
        ignored.

    Returns
    -------
    Callable
        ``take(indices, crops)``: indices (B,) int64 into ``x`` and what `draw_crops` returned
        for so many images, both on the device of ``x``.
    """
    if not augment:
        return lambda indices, crops: x.index_select(0, indices)
    padded = _reflect(_reflect(x, 2), 3)
    padded = torch.cat([padded, padded.flip(3)]).contiguous()
    image, *strides = padded.stride()
    # A crop is one run of the padded memory, first pixel to last, seen with the padded strides.
    length = 1 + sum((n - 1) * step for n, step in zip(x.shape[1:], strides, strict=True))
    runs = padded.flatten().unfold(0, length, 1)

    def take(indices: Tensor, crops: Tensor) -> Tensor:
        flipped, top, left = crops % 2, crops // 2 // OFFSETS, crops // 2 % OFFSETS
        first = (indices + len(x) * flipped) * image + top * strides[1] + left
        taken = runs.index_select(0, first)
        return taken.as_strided((len(indices), *x.shape[1:]), (length, *strides))

    return take


def _reflect(x: Tensor, axis: int) -> Tensor:
    length = x.shape[axis]
    before = x.narrow(axis, 1, PAD).flip(axis)
    after = x.narrow(axis, length - 1 - PAD, PAD).flip(axis)
    return torch.cat([before, x, after], axis)
