"""A frozen network and the transformation of images before it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Hashable, Sequence
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

from fedbary.data.batches import scale_pixels
from fedbary.data.forms import user_path
from fedbary.errors import SettingError
from fedbary.parts.imports import said
from fedbary.variational.frozen import hash_tensors

ROUNDING = 1e-3
"""The most that floats may lie outside of 0 to 1."""

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

    def require(self, images: Tensor) -> None:
        """Raise a SettingError for floats that are no pixels from 0 to 1, if a mean is subtracted.

        Rounding is allowed for.
        """
        if self.mean and images.is_floating_point() and len(images):
            if images.min() < -ROUNDING or images.max() > 1 + ROUNDING:
                allowed = "bytes, or floats from 0 to 1: it subtracts its own mean"
                raise SettingError("backbone", "floats outside 0 to 1", allowed)

    @property
    def said(self) -> str:
        """The transformation in words."""
        if not self.mean and self.size is None:
            return "images as they are"
        mean, std = (", ".join(f"{v:.4g}" for v in held) for held in (self.mean, self.std))
        sides = f"images at {self.size} pixels, {self.mode}" if self.size else "images of any size"
        cut = f", the middle of {self.shorter}" if self.shorter else ""
        return f"{sides}{cut}; mean {mean or 'kept'}, std {std or 'kept'}"

    def __call__(self, images: Tensor) -> Tensor:
        """Transform images (N, C, H, W), bytes or floats from 0 to 1."""
        x = self._scaled(scale_pixels(images))
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
    code : str
        Digest of the code of a body of one's own; "" for a library's.
    """

    name: str
    body: nn.Module
    transform: Transform
    code: str = field(default="", kw_only=True)
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
        self.transform.require(images)
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

    @property
    def said(self) -> str:
        """The way of an input before the body, in words."""
        return self.transform.said

    @property
    def identity(self) -> str:
        """All but the weights that a feature depends on: name, code, layers and transform."""
        return f"{self.name} {self.code} {self.body} {self.transform} {self.transform.shorter}"

    @cached_property
    def digest(self) -> str:
        """A hash of identity and weights; sites compare it."""
        found = hashlib.blake2b(self.identity.encode(), digest_size=16)
        hash_tensors(found, self.body.state_dict())
        return found.hexdigest()


SECONDS = 5.0
"""The time that the hub may take to answer at all; its library tries for a minute."""

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

COMPUTED = ("relative_position_index", "attn_mask", "num_batches_tracked")
"""Last names of tensors that a network computes itself."""

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


Named = dict[str, Tensor]
"""Tensors by name."""


def fill(body: nn.Module, weights: str, converted: Callable[[Named], Named] = dict) -> None:
    """Put the weights of a file or a package into a body.

    Tensors are found by their names. A prefix that all names of the file, or all names of the body,
    have in common does not count. If no name is that of the body, tensors are taken in the order of
    the file, unless that is the order of the alphabet, which says nothing. Then layers are found by
    shapes and last parts of names, if these leave no choice. A layer that answers with classes, see
    `HEADS`, is ignored.

    Parameters
    ----------
    body
        Filled in place.
    weights
        A path or an installed package, see `file_of`.
    converted
        A library's conversion of a file's tensors to those of its network.

    Raises
    ------
    SettingError
        If the file cannot be read, or does not fit.
    """
    file, wanted = file_of(weights), body.state_dict()
    allowed = "weights of the network that backbone names"
    held = _read(file)
    if not wanted.keys() & held.keys():
        held = _without_prefix(_without_head(_without_prefix(held), wanted))
    try:
        held = converted(held)
    except Exception as error:  # noqa: BLE001 - of a file of other names a library may raise any
        raise SettingError("backbone_weights", str(file), f"{allowed} ({said(error)})") from None
    held = _without_head(held, wanted)
    if not wanted.keys() & held.keys():
        held = _renamed(held, wanted)
    more = [name for name in held if name not in wanted and name.split(".")[-1] not in COMPUTED]
    if missing := [name for name in wanted if name not in held]:
        beside = f" and has {more[0]}" if more else ""
        raise SettingError(
            "backbone_weights", str(file), f"{allowed}; it has no {missing[0]}{beside}"
        )
    if more:
        raise SettingError("backbone_weights", str(file), f"{allowed}; it also has {more[0]}")
    for name, tensor in wanted.items():
        if held[name].shape != tensor.shape:
            shapes = f"{tuple(held[name].shape)}, not {tuple(tensor.shape)}"
            raise SettingError("backbone_weights", str(file), f"{allowed}; {name} is {shapes}")
    body.load_state_dict({name: held[name] for name in wanted})


def _read(file: Path) -> Named:
    """Return a file's tensors: its own, or those of its one entry that holds tensors by name."""
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        held = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - a stranger's file is damaged in many ways
        allowed = f"a file of tensors by name; reading it ended with {type(error).__name__}"
        raise SettingError("backbone_weights", str(file), allowed) from None
    if _is_named(held):
        return dict(held)
    entries = [name for name in held if _is_named(held[name])] if isinstance(held, dict) else []
    if len(entries) != 1:
        several = f"; it has {len(entries)}: {', '.join(map(str, entries))}" if entries else ""
        allowed = f"a file of tensors by name{several}"
        raise SettingError("backbone_weights", str(file), allowed)
    return dict(held[entries[0]])


def _is_named(held: object) -> bool:
    return isinstance(held, dict) and bool(held) and all(map(torch.is_tensor, held.values()))


def _without_head(held: Named, wanted: Named) -> Named:
    """Return the tensors but for those of a layer that answers with classes."""
    return {n: t for n, t in held.items() if n in wanted or n.split(".")[0].strip("_") not in HEADS}


def _without_prefix(held: Named) -> Named:
    """Return tensors by the parts of their names that are not common to all."""
    names = [name.split(".")[:-1] for name in held]
    common = 0
    while names and all(len(n) > common and n[common] == names[0][common] for n in names):
        common += 1
    return {name.split(".", common)[-1]: tensor for name, tensor in held.items()}


def _renamed(held: Named, wanted: Named) -> Named:
    """Return tensors under the wanted names; as they are, where names and shapes leave a choice."""
    ends = _without_prefix(wanted)
    if ends.keys() <= held.keys():
        return {name: held.pop(end) for name, end in zip(wanted, ends, strict=True)} | held
    names = list(zip(held, wanted, strict=False))
    is_ordered = list(held) != sorted(held) and len(held) == len(wanted) == len(names)
    if is_ordered and all(_kind(held, its) == _kind(wanted, our) for its, our in names):
        log.warning("Weights of other names are taken in the order of their file")
        return {our: held[its] for its, our in names}
    theirs, ours = _layers(held), _layers(wanted)
    kinds = set(ours)
    if kinds != set(theirs) or any(len(found[k]) > 1 for found in (theirs, ours) for k in kinds):
        return held
    pairs = [(theirs[kind][0], ours[kind][0]) for kind in kinds]
    return {f"{our}{end}": held[f"{its}{end}"] for its, our in pairs for end in _ends(wanted, our)}


def _kind(held: Named, name: str) -> tuple[str, torch.Size]:
    return name.split(".")[-1], held[name].shape


def _layers(held: Named) -> dict[Hashable, list[str]]:
    """Return the layers' names up to the last dot, by what their tensors are called and shaped."""
    found: dict[Hashable, list[str]] = {}
    for layer in dict.fromkeys(name[: name.rfind(".") + 1] for name in held):
        kind = frozenset((end, held[layer + end].shape) for end in _ends(held, layer))
        found.setdefault(kind, []).append(layer)
    return found


def _ends(held: Named, layer: str) -> list[str]:
    ends = (name.removeprefix(layer) for name in held if name.startswith(layer))
    return [end for end in ends if "." not in end]
