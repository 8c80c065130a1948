"""A frozen network and the transformation of images before it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbary.data.batches import inputs
from fedbary.errors import SettingError
from fedbary.parts.imports import said
from fedbary.variational.frozen import hash_tensors

SAY_SECONDS = 10.0
"""Seconds between lines of the log on a pass."""

log = logging.getLogger("flwr.fedbary")
"""A child of Flower's logger: its lines go where Flower's go."""


@dataclass(frozen=True)
class Transform:
    """Transforms images for a body: (x − mean)/std of each channel, at one size.

    Attributes
    ----------
    size : int or None
        Height and width in pixels after scaling; None: unchanged.
    mean, std : sequence of float
        Mean and standard deviation of each channel's pixels in [0, 1]; grey images become as many
        channels. Empty: pixels stay as they are.
    mode : str
        Interpolation: ``bilinear`` or ``bicubic``.
    shorter : int or None
        Length of an image's shorter side before its middle is cut out at `size`. None: the whole
        image becomes a square.
    """

    size: int | None = None
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    mode: str = "bilinear"
    shorter: int | None = field(default=None, repr=False)

    def sized(self, size: int) -> Transform:
        """Return the same for another size; the same fraction is cut off."""
        if self.shorter is None or self.size is None:
            return replace(self, size=size)
        return replace(self, size=size, shorter=round(size * self.shorter / self.size))

    def __call__(self, images: Tensor) -> Tensor:
        """Transform images (N, C, H, W), bytes or floats from 0 to 1."""
        x = self._scaled(inputs(images))
        if not self.mean:
            return x
        mean, std = (x.new_tensor(held).view(1, -1, 1, 1) for held in (self.mean, self.std))
        return (x - mean) / std

    def _scaled(self, x: Tensor) -> Tensor:
        """Return images at `size`, or their middle if a side is to be cut off."""
        if self.size is None:
            return x
        height, width = x.shape[2:]
        sides = self.size, self.size
        if self.shorter is not None:
            low = min(height, width)
            sides = self.shorter * height // low, self.shorter * width // low
        if (height, width) != sides:
            smaller = max(height, width) > max(sides)
            x = functional.interpolate(x, sides, mode=self.mode, antialias=smaller)
            x = x.clamp(0, 1) if self.mode == "bicubic" else x
        top, left = (round((side - self.size) / 2) for side in sides)
        return x[:, :, top : top + self.size, left : left + self.size]


def pooled(found: Tensor) -> Tensor:
    """Return features (N, D); maps (N, D, h, w) are averaged over the pixels."""
    return found.mean((2, 3)) if found.ndim == 4 else found


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen body in evaluation mode.

    Attributes
    ----------
    name : str
        As the setting `backbone` has it.
    body : nn.Module
        Answers images (N, C, H, W) with features (N, D), or with maps (N, D, h, w), which are
        averaged over the pixels.
    transform : Transform
        Transformation of images before the body.
    """

    name: str
    body: nn.Module
    transform: Transform
    _widths: dict[tuple[int, ...], int] = field(default_factory=dict, init=False, repr=False)

    at_once: ClassVar[int] = 64
    """Inputs that pass at a time, always: the last bits of a feature depend on their number."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features (N, D) of images (N, C, H, W), in one pass."""
        return pooled(self.body(self.transform(images)))

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return the features (N, D) of images (N, C, H, W) on the CPU; the log reports progress.

        Raises
        ------
        SettingError
            If one is not finite.
        """
        device = next(iter(self.body.state_dict().values()), torch.empty(0)).device
        found, begun = [], time.monotonic()
        for part in images.split(self.at_once):
            whole = torch.cat([part, part[:1].expand(self.at_once - len(part), *part.shape[1:])])
            found.append(self(whole.to(device))[: len(part)].float().cpu())
            if time.monotonic() - begun > SAY_SECONDS:
                begun, done = time.monotonic(), sum(map(len, found))
                log.info("Backbone %s: %d of %d inputs", self.name, done, len(images))
        if not found:
            return torch.empty(0, self.width(tuple(images.shape[1:])))
        features = torch.cat(found)
        if not features.isfinite().all():
            raise SettingError("backbone", self.name, "one whose features are finite numbers")
        return features

    def width(self, shape: tuple[int, ...]) -> int:
        """Return D for images of a shape (C, H, W), found once.

        Raises
        ------
        SettingError
            If the body cannot take such images, or does not answer with features.
        """
        if shape in self._widths:
            return self._widths[shape]
        try:
            found = self.features(torch.zeros(1, *shape))
        except SettingError:
            raise
        except Exception as error:  # noqa: BLE001 - code of others raises many kinds
            sides = "×".join(map(str, shape))
            allowed = f"a network that takes inputs of {sides} ({said(error)})"
            raise SettingError("backbone", self.name, allowed) from None
        if found.ndim != 2:
            allowed = f"a network that answers with features (N, D), not {tuple(found.shape)}"
            raise SettingError("backbone", self.name, allowed)
        return self._widths.setdefault(shape, found.shape[1])

    @cached_property
    def digest(self) -> str:
        """A hash of name, weights and transform; sites compare it."""
        said = f"{self.name} {self.transform}"
        if (shorter := self.transform.shorter) is not None:
            said += f" {shorter}"
        found = hashlib.blake2b(said.encode(), digest_size=16)
        hash_tensors(found, self.body.state_dict())
        return found.hexdigest()
