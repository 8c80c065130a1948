"""The images that a run's settings name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedbary.backbones import Backbone
from fedbary.backbones import load as load_backbone
from fedbary.backbones._store import Store
from fedbary.data.batches import Augment, scale_pixels
from fedbary.data.deal import Shard
from fedbary.data.forms import user_path
from fedbary.data.image_layout import (
    ImageLayout,
    of_pictures,
    parse_channels,
    parse_classes,
    parse_shape,
)
from fedbary.data.images import Dataset, Normaliser, load
from fedbary.data.standardise import Standardiser, principal
from fedbary.errors import SettingError
from fedbary.settings.config import Settings
from fedbary.settings.device import torch_device
from fedbary.settings.task_words import OfImages
from fedbary.tasks import _sums
from fedbary.tasks._values import Condition, Dialogue


def backbone_of(settings: Settings) -> Backbone | None:
    """Return the backbone that the settings name, read once per process; None for none."""
    own = settings.of_task(OfImages)
    if own.backbone == "none":
        return None
    by = own.backbone, own.backbone_weights, own.backbone_size, torch_device(settings)
    return load_backbone(*by, parse_channels(own.backbone_mean), parse_channels(own.backbone_std))


def require_same(backbone: Backbone | None, layout: ImageLayout) -> None:
    """Raise a SettingError unless a backbone is the one that the layout was made with."""
    held = backbone.digest if backbone else ""
    if held != layout.backbone:
        allowed = f"weights, code and transform of the run, digest {layout.backbone or 'none'}"
        raise SettingError("backbone", backbone.name if backbone else "none", allowed)


def kept_features(x: Tensor, backbone: Backbone, folder: str) -> Tensor:
    """Return the features of images, on the CPU, kept in a folder from one process to the next."""
    return Store(user_path(folder), backbone.digest).features(x, backbone.features)


@lru_cache(maxsize=1024)
def of_shard(shard: Shard, backbone: Backbone, folder: str) -> Shard:
    """Return a shard of images as one of features, computed once per process."""
    together = torch.cat([shard.x, shard.x_held_out])
    found = kept_features(together, backbone, folder)
    x, held_out = found.split([len(shard.x), len(shard.x_held_out)])
    return replace(shard, x=x, x_held_out=held_out)


def shape_of(settings: Settings, layout: ImageLayout) -> tuple[int, ...]:
    """Return the shape of the model's input: an image's, or the number of features.

    Raises
    ------
    SettingError
        If the settings ask for components of images, or for more than there are features.
    """
    features = settings.of_task(OfImages).features
    if features == "all":
        return layout.seen
    if len(layout.seen) > 1:
        allowed = "all for images without a backbone"
        raise SettingError("features", features, allowed)
    if features > layout.seen[0]:
        raise SettingError("features", features, f"all, or up to {layout.seen[0]}")
    return (features,)


def ask_projection(scale: Normaliser, rows: float, settings: Settings) -> Dialogue[Normaliser]:
    """Ask for second moments of features, standardised by all rows; return the projection too."""
    mean, std = (torch.tensor(held, dtype=torch.float64) for held in (scale.mean, scale.std))
    moments = yield from _sums.ask_moments(Standardiser(mean, std), rows)
    own = settings.of_task(OfImages)
    found = principal(moments, int(own.features), own.whiten)
    return replace(scale, projection=tuple(found.flatten().tolist()))


LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in an image's luminance, ITU-R BT.601."""

BYTES = 255
"""Divisor of bytes."""

FAR, NARROW = 0.5, 0.1
"""Tolerance beyond the range of training pixels, and the fraction of it that counts as narrow."""


def conditions(settings: Settings) -> Iterator[Condition]:
    """Yield conditions on the settings of a classification."""
    own = settings.of_task(OfImages)
    on_features = own.backbone != "none" and own.adapters == "none"
    still = not on_features or own.augment in ("auto", False)
    yield "augment", still, "auto or false with a backbone, which sees an image once"
    flat = own.backbone == "none" or settings.model not in ("cnn", "resnet20")
    yield "model", flat, "linear, mlp or a network of yours with a backbone, for its features"
    normal = own.normalise == "none" or dict(settings).get("pixels") != "signed"
    yield "normalise", normal, "none for pixels=signed"


def load_dataset(settings: Settings) -> Dataset:
    """Return the data set, read once per process."""
    named = named_shape(settings)
    data_dir, shape = Path(settings.data_dir), named if named and len(named) == 3 else None
    own = settings.of_task(OfImages)
    group = "" if own.group == "none" else own.group
    how = settings.download, shape, own.resize, own.target, group
    return load(settings.dataset, data_dir, *how)


def load_foreign(settings: Settings) -> Dataset:
    """Return `ood_dataset`; pictures that may be resized take the shape of the data set."""
    held = load_dataset(settings).shape
    resize = settings.of_task(OfImages).resize
    shape = of_pictures(held) if resize != "none" else None
    data_dir = Path(settings.data_dir)
    found = load(settings.of_task(OfImages).ood_dataset, data_dir, settings.download, shape, resize)
    if 1 in (len(held), len(found.shape)) and found.shape != held:
        shown, allowed = ("×".join(map(str, sides)) for sides in (found.shape, held))
        raise SettingError("ood_dataset", f"inputs of {shown}", f"inputs of {allowed}, as dataset")
    return found


def named_shape(settings: Settings) -> tuple[int, ...] | None:
    """Return the shape that the settings name; None for that of the data set."""
    named = settings.of_task(OfImages).input_shape
    return None if named == "auto" else parse_shape(named)


def layout_of(settings: Settings) -> ImageLayout:
    """Return the layout that the settings name, or else that of the data set.

    Raises
    ------
    SettingError
        If the two do not agree.
    """
    own = settings.of_task(OfImages)
    if settings.dataset == "none":
        return ImageLayout(parse_shape(own.input_shape), parse_classes(own.classes))
    dataset = load_dataset(settings)
    if named_shape(settings) not in (None, dataset.shape):
        shape = "x".join(map(str, dataset.shape))
        raise SettingError("input_shape", own.input_shape, f"auto or {shape}, the data set's")
    if own.classes == "auto":
        return ImageLayout(dataset.shape, dataset.classes)
    classes, numbers = parse_classes(own.classes), parse_classes(str(dataset.num_classes))
    known = numbers in (classes, dataset.classes) or classes == dataset.classes
    if not known or len(classes) != len(numbers):
        allowed = f"auto, or the {dataset.num_classes} classes of the data set, in their order"
        raise SettingError("classes", own.classes, f"{allowed}: {', '.join(dataset.classes)}")
    return ImageLayout(dataset.shape, classes)


def augments(settings: Settings) -> Augment:
    """Random changes of the data set's training images."""
    chosen = settings.of_task(OfImages).augment
    return load_dataset(settings).augment if chosen == "auto" else chosen


def require_fit(dataset: Dataset, layout: ImageLayout) -> None:
    """Raise a SettingError unless a node's data set has the layout that the server names."""
    if dataset.shape != layout.shape or dataset.num_classes != len(layout.classes):
        allowed = f"images of {layout.shape} and {len(layout.classes)} classes, as the server has"
        found = f"images of {dataset.shape} and {dataset.num_classes} classes"
        raise SettingError(dataset.name, found, allowed)


def ood_images(settings: Settings) -> Tensor | None:
    """Test images of `ood_dataset` in the shape of the data set, on the device; None for none.

    They are resized bilinearly; colours become their luminance, or grey becomes three channels.
    Features stay as they are.
    """
    if settings.of_task(OfImages).ood_dataset == "none":
        return None
    other, shape = load_foreign(settings), load_dataset(settings).shape
    return _in_shape(other, shape, torch_device(settings))


@lru_cache(maxsize=4)
def _in_shape(other: Dataset, shape: tuple[int, ...], device: torch.device) -> Tensor:
    images = scale_pixels(other.x_test)
    if len(shape) == 1:
        return images.to(device)
    channels, height, width = shape
    if images.shape[1] > channels:
        images = (images * images.new_tensor(LUMINANCE).view(1, 3, 1, 1)).sum(1, keepdim=True)
    images = functional.interpolate(images, (height, width), mode="bilinear", antialias=True)
    return images.expand(-1, channels, -1, -1).contiguous().to(device)


def compared(x: Tensor, said: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a line if the range of images (N, C, H, W) is narrow beside the training images'.

    Features have none.

    Parameters
    ----------
    x
        The images, in their own units.
    said
        The ``type`` of the training images, the ``least`` and the ``most`` of their pixels.

    Raises
    ------
    SettingError
        If they are bytes and the training images were standardised, or lie far outside that range.
    """
    if x.ndim == 2:
        return ()
    scale = BYTES if said["type"] == "uint8" else 1
    least, most = said["least"] / scale, said["most"] / scale
    own_scale = BYTES if x.dtype == torch.uint8 else 1
    low, high = float(x.min()) / own_scale, float(x.max()) / own_scale
    here, there = (
        f"pixels from {low:.3g} to {high:.3g}",
        f"{least:.3g} to {most:.3g}, as in training",
    )
    width = most - least
    if low < least - FAR * width or high > most + FAR * width:
        raise SettingError("images", here, there)
    if own_scale == BYTES and (least < 0 or most > 1):
        raise SettingError("images", f"bytes, {here}", f"floats from {there}")
    return (f"{here}; {there}",) if high - low < NARROW * width else ()
