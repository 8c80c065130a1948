"""The backbone between a task's images and its model: images become features once."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from fedbary.backbones import Backbone, load
from fedbary.backbones._store import Store
from fedbary.data.deal import Shard
from fedbary.data.forms import user_path
from fedbary.data.image_layout import ImageLayout, parse_channels
from fedbary.data.images import Normaliser
from fedbary.data.standardise import Standardiser, principal
from fedbary.errors import SettingError
from fedbary.settings.config import Settings
from fedbary.settings.device import torch_device
from fedbary.settings.task_words import OfImages
from fedbary.tasks import _sums
from fedbary.tasks._values import Dialogue


def backbone_of(settings: Settings) -> Backbone | None:
    """Return the backbone that the settings name, read once per process; None for none."""
    own = settings.of_task(OfImages)
    if own.backbone == "none":
        return None
    by = own.backbone, own.backbone_weights, own.backbone_size, torch_device(settings)
    return load(*by, parse_channels(own.backbone_mean), parse_channels(own.backbone_std))


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


def ask_projection(scale: Normaliser, settings: Settings) -> Dialogue[Normaliser]:
    """Ask for second moments of standardised features; return the projection too."""
    mean, std = (torch.tensor(held, dtype=torch.float64) for held in (scale.mean, scale.std))
    moments = yield from _sums.ask_moments(Standardiser(mean, std))
    own = settings.of_task(OfImages)
    found = principal(moments, int(own.features), own.whiten)
    return replace(scale, projection=tuple(found.flatten().tolist()))
