"""Test images as they come from a worse camera: blurred, noisy or pale, at five strengths.

Kinds and strengths follow Hendrycks and Dietterich, Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations, ICLR 2019, who test networks on CIFAR-10. Blur is measured in
32nds of an image's side: images of few pixels, such as the digits' 8 × 8, are hardly blurred.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor

from fedbary.errors import SettingError

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
