"""Batches of images: drawn from a client's tensor, augmented, scaled for the network."""

from collections.abc import Callable

import torch
from torch import Tensor

PAD = 4


def inputs(batch: Tensor) -> Tensor:
    """Return images as a network takes them: float32, uint8 divided by 255, floats as they are.

    The result lies in [0, 1] for uint8 images and has the shape of ``batch``; there is no
    normalisation by mean or standard deviation, as in the papers.
    """
    return batch.float().div_(255) if batch.dtype == torch.uint8 else batch


def batch_source(x: Tensor, augment: bool) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Return the function that draws a batch of one client's images.

    Called as ``take(indices, generator)`` it returns the images of those indices, (B, C, H, W),
    of the type and on the device of ``x``, in memory of their own. Typical use::

        take = batch_source(x, dataset.augment)
        for indices in torch.randperm(len(x), generator=generator).split(64):
            logits = model(inputs(take(indices, generator)))

    With augmentation every image is, independently of the others, flipped left to right with
    probability one half, reflect-padded by 4 pixels and cropped back to its size at an offset
    uniform over the 9 × 9 possible ones (the CIFAR-10 protocol of the papers' code). The padded
    images and their mirror images are made once, in about three times the memory of ``x``; a
    batch is then one copy. It is a strided view of that copy: `inputs` of bytes is contiguous.

    Parameters
    ----------
    x : Tensor
        Images, (N, C, H, W), on any device; with augmentation H and W are above 4. Not changed.
    augment : bool
        Whether to crop and flip. Without it the generator is left alone.

    Returns
    -------
    Callable
        ``take(indices, generator)``: indices (B,) int64 into ``x``, on any device; generator on
        the CPU, so that one seed gives the same crops whatever the device of ``x``.
    """
    if not augment:
        return lambda indices, generator: x.index_select(0, indices.to(x.device))
    padded = _reflect(_reflect(x, 2), 3)
    padded = torch.cat([padded, padded.flip(3)]).contiguous()
    image, *strides = padded.stride()
    # A crop is one run of the padded memory, first pixel to last, seen with the padded strides.
    length = 1 + sum((n - 1) * step for n, step in zip(x.shape[1:], strides, strict=True))
    runs = padded.flatten().unfold(0, length, 1)
    offsets = 2 * PAD + 1

    def take(indices: Tensor, generator: torch.Generator) -> Tensor:
        draw = torch.randint(2 * offsets**2, indices.shape, generator=generator).to(x.device)
        flipped, top, left = draw % 2, draw // 2 // offsets, draw // 2 % offsets
        first = (indices.to(x.device) + len(x) * flipped) * image + top * strides[1] + left
        crops = runs.index_select(0, first)
        return crops.as_strided((len(indices), *x.shape[1:]), (length, *strides))

    return take


def _reflect(x: Tensor, axis: int) -> Tensor:
    length = x.shape[axis]
    before = x.narrow(axis, 1, PAD).flip(axis)
    after = x.narrow(axis, length - 1 - PAD, PAD).flip(axis)
    return torch.cat([before, x, after], axis)
