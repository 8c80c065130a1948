"""Batches of inputs: drawn from a client's tensor, augmented, scaled for the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Generator, Tensor

from fedbary.errors import SettingError

PAD = 4
OFFSETS = 2 * PAD + 1
UNMOVED = 2 * (OFFSETS * PAD + PAD)
"""The crop that leaves an image as it is; an odd number also flips it."""

Augment = bool | Literal["crop", "flip"]
"""Random changes of training images: both (True), one of them, or none (False)."""


def scale_pixels(batch: Tensor) -> Tensor:
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


BLUR_STD = (0.4, 0.6, 0.7, 0.8, 1.0)
"""Standard deviation of the Gaussian that blurs, in 32nds of the width."""

NOISE_STD = (0.04, 0.06, 0.08, 0.09, 0.10)
"""Standard deviation of the Gaussian noise on each pixel, images being from 0 to 1."""

CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
"""Factor by which each pixel's distance from its channel's mean in the image shrinks."""

STRENGTHS = range(5)


def blurred(images: Tensor, strength: int, generator: Generator) -> Tensor:
    """Blur images (N, C, H, W) by a Gaussian."""
    from torchvision.transforms.functional import gaussian_blur

    std = BLUR_STD[strength] * images.shape[-1] / 32
    return gaussian_blur(images, 2 * int(4 * std + 0.5) + 1, std)


def noisy(images: Tensor, strength: int, generator: Generator) -> Tensor:
    """Add Gaussian noise to every pixel."""
    noise = torch.empty_like(images).normal_(generator=generator)
    return images + NOISE_STD[strength] * noise


def pale(images: Tensor, strength: int, generator: Generator) -> Tensor:
    """Move every pixel towards the mean of its channel in the image."""
    mean = images.mean((-2, -1), keepdim=True)
    return mean + CONTRAST[strength] * (images - mean)


CORRUPTIONS: Mapping[str, Callable[[Tensor, int, Generator], Tensor]] = {
    "blur": blurred,
    "noise": noisy,
    "contrast": pale,
}
"""Each kind's function of images (N, C, H, W) from 0 to 1, a strength of `STRENGTHS` and a source
of noise on the CPU."""


def require_pixels(images: Tensor) -> None:
    """Raise a SettingError unless the pixels lie in [0, 1], the range that corruptions need."""
    if images.ndim == 2:
        raise SettingError("corruptions", True, "false for features: images are corrupted")
    if not (images.min() >= 0 and images.max() <= 1):
        found = f"false for images from {float(images.min()):g} to {float(images.max()):g}"
        raise SettingError("corruptions", True, f"{found}: pixels are from 0 to 1")


def corrupted(images: Tensor, kind: str, strength: int, seed: int) -> Tensor:
    """Return images (N, C, H, W) from 0 to 1, on the CPU, corrupted and within these bounds."""
    generator = torch.Generator().manual_seed(seed)
    return CORRUPTIONS[kind](images, strength, generator).clamp(0, 1)
