"""A frozen network and the transformation of images before it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from fedbary.data.batches import inputs
from fedbary.data.forms import user_path
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


SECONDS = 5.0
"""How long the hub may take to answer at all; its library tries for a minute."""

_Found = TypeVar("_Found")


def cached_or_fetched(read: Callable[[], _Found], asks: bool) -> _Found:
    """Return what `read` finds in the cache; else, if `asks`, what it finds on the hub.

    Errors are those of `read`, and of a hub that does not answer.
    """
    constants: Any = import_module("huggingface_hub.constants")
    is_offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        return read()
    except Exception:
        if is_offline or not asks:
            raise
    finally:
        constants.HF_HUB_OFFLINE = is_offline
    session = import_module("huggingface_hub.utils").get_session()
    session.head(constants.ENDPOINT, timeout=SECONDS)
    return read()


ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
"""Endings of files of weights."""

HEADS = ("classifier", "fc", "head", "heads", "head_dist")
"""Names of the layer that answers with classes: it is no part of a body."""


def file_of(weights: str) -> Path:
    """Return the file of weights that a path or an installed package names.

    Raises
    ------
    SettingError
        If there is none, or a package holds several.
    """
    path = user_path(weights)
    if path.is_file():
        return path
    spec = find_spec(weights) if weights.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        allowed = f"auto, a file of weights ({', '.join(ENDINGS)}) or an installed package that "
        raise SettingError("backbone_weights", weights, f"{allowed}holds one; there is none")
    found = [
        file
        for place in spec.submodule_search_locations
        for file in sorted(Path(place).rglob("*"))
        if file.suffix in ENDINGS
    ]
    if len(found) != 1:
        allowed = f"a package with one file of weights, not {len(found)}"
        raise SettingError("backbone_weights", weights, allowed)
    return found[0]


def fill(body: nn.Module, weights: str) -> None:
    """Put the weights of a file or a package into a body.

    Tensors are found by their names. If all names differ, they are taken in order, provided that
    number, shapes and last parts of the names agree. A layer that answers with classes, see
    `HEADS`, is ignored.

    Raises
    ------
    SettingError
        If the file cannot be read, or does not fit.
    """
    file = file_of(weights)
    held, wanted = _read(file), body.state_dict()
    found = {name: held[name] for name in wanted if name in held}
    if not found:
        found = _in_order(_without_head(held), wanted)
    allowed = "weights of the network that backbone names"
    if missing := [name for name in wanted if name not in found]:
        raise SettingError("backbone_weights", str(file), f"{allowed}; it has no {missing[0]}")
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            shapes = f"{tuple(found[name].shape)}, not {tuple(tensor.shape)}"
            raise SettingError("backbone_weights", str(file), f"{allowed}; {name} is {shapes}")
    body.load_state_dict(found)


def _read(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        held = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - a stranger's file is damaged in many ways
        allowed = f"a file of tensors by name; reading it ended with {type(error).__name__}"
        raise SettingError("backbone_weights", str(file), allowed) from None
    held = held.get("state_dict", held) if isinstance(held, dict) else {}
    if not held or not all(isinstance(tensor, Tensor) for tensor in held.values()):
        raise SettingError("backbone_weights", str(file), "a file of tensors by name")
    return dict(held)


def _without_head(held: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t for n, t in held.items() if n.split(".")[0].strip("_") not in HEADS}


def _in_order(held: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of other names under the wanted ones, or none if they do not fit."""
    pairs = list(zip(held.items(), wanted.items(), strict=False))
    fits = len(held) == len(wanted) and all(
        given.shape == tensor.shape and its.split(".")[-1] == name.split(".")[-1]
        for (its, given), (name, tensor) in pairs
    )
    return {name: given for (_, given), (name, _) in pairs} if fits else {}
