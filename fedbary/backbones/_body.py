"""A frozen network and what is done to an image before it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbary.data.batches import inputs
from fedbary.errors import SettingError
from fedbary.parts.imports import said

AT_ONCE = 64
"""Images that pass at a time, always: the last bits of a feature depend on their number."""

SAY_SECONDS = 10.0
"""How often the log says how far a pass is."""

log = logging.getLogger("flwr.fedbary")
"""A child of Flower's, whose lines go where Flower's go."""


@dataclass(frozen=True)
class Transform:
    """Takes images to what a body expects: (x − mean)/std of each channel, at one size.

    Attributes
    ----------
    size : int or None
        Side in pixels that height and width become; None: as they are.
    mean, std : sequence of float
        Of each channel, of pixels in [0, 1]; grey images become as many channels. Empty: pixels
        stay as they are.
    mode : str
        How images are scaled: ``bilinear`` or ``bicubic``.
    """

    size: int | None = None
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    mode: str = "bilinear"

    def sized(self, size: int) -> Transform:
        """Return the same for another size."""
        return replace(self, size=size)

    def __call__(self, images: Tensor) -> Tensor:
        """Return images (N, C, H, W), bytes or floats from 0 to 1, as the body expects them."""
        x = inputs(images)
        if self.size is not None and x.shape[2:] != (self.size, self.size):
            smaller = max(x.shape[2:]) > self.size
            side = (self.size, self.size)
            x = functional.interpolate(x, side, mode=self.mode, antialias=smaller)
            x = x.clamp(0, 1) if self.mode == "bicubic" else x
        if not self.mean:
            return x
        mean, std = (x.new_tensor(held).view(1, -1, 1, 1) for held in (self.mean, self.std))
        return (x - mean) / std


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen body in evaluation mode.

    Attributes
    ----------
    name : str
        As the setting `backbone` has it.
    body : nn.Module
        Answers images (N, C, H, W) with features (N, D), or with maps (N, D, h, w), of which the
        mean over the pixels is taken.
    transform : Transform
        What is done to images before.
    """

    name: str
    body: nn.Module
    transform: Transform

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features (N, D) of images (N, C, H, W), in one pass."""
        found: Tensor = self.body(self.transform(images))
        return found.mean((2, 3)) if found.ndim == 4 else found

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return the features (N, D) of images (N, C, H, W) on the CPU; the log says how far it is.

        Raises
        ------
        SettingError
            If one is not finite.
        """
        device = next(iter(self.body.state_dict().values()), torch.empty(0)).device
        found, begun = [], time.monotonic()
        for part in images.split(AT_ONCE):
            whole = torch.cat([part, part[:1].expand(AT_ONCE - len(part), *part.shape[1:])])
            found.append(self(whole.to(device))[: len(part)].float().cpu())
            if time.monotonic() - begun > SAY_SECONDS:
                begun, done = time.monotonic(), sum(map(len, found))
                log.info("Backbone %s: %d of %d images", self.name, done, len(images))
        if not found:
            return torch.empty(0, self.width(tuple(images.shape[1:])))
        features = torch.cat(found)
        if not features.isfinite().all():
            raise SettingError("backbone", self.name, "one whose features are finite numbers")
        return features

    def width(self, shape: tuple[int, ...]) -> int:
        """Return D for images of a shape (C, H, W).

        Raises
        ------
        SettingError
            If the body cannot take such images, or answers with something else than features.
        """
        try:
            found = self.features(torch.zeros(1, *shape))
        except SettingError:
            raise
        except Exception as error:  # noqa: BLE001 - code of others raises many kinds
            sides = "×".join(map(str, shape))
            allowed = f"a network that takes images of {sides} ({said(error)})"
            raise SettingError("backbone", self.name, allowed) from None
        if found.ndim != 2:
            allowed = f"a network that answers with features (N, D), not {tuple(found.shape)}"
            raise SettingError("backbone", self.name, allowed)
        return found.shape[1]

    @cached_property
    def digest(self) -> str:
        """A hash of name, weights and transform, by which sites know that theirs is the same."""
        found = hashlib.blake2b(f"{self.name} {self.transform}".encode(), digest_size=16)
        for name, tensor in self.body.state_dict().items():
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            held = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            found.update(memoryview(held.numpy()))
        return found.hexdigest()
