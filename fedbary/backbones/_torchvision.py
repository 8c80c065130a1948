"""Networks of torchvision."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fedbary.backbones._body import HEADS, Transform, fill
from fedbary.data.forms import DataSource
from fedbary.errors import SettingError, one_line
from fedbary.parts.imports import library

EXTRA = "simulation"


def make(source: DataSource, weights: str) -> tuple[nn.Module, Transform]:
    """Return a network without its last layer, and its transform.

    Raises
    ------
    SettingError
        If torchvision has no such classifier of images, or its weights are not there.
    """
    name, called = source.text, source.held
    models = library("torchvision.models", EXTRA, "backbone", name)
    known = models.list_models(module=models)
    if called not in known:
        raise SettingError("backbone", name, f"a network of torchvision: {', '.join(known)}")
    pretrained = models.get_model_weights(called).DEFAULT
    try:
        body = models.get_model(called, weights=None)
        if weights == "auto":  # torchvision's own loading would take any pickle
            body.load_state_dict(pretrained.get_state_dict(check_hash=True, weights_only=True))
    except Exception as error:  # noqa: BLE001 - a network and a file fail in many ways
        place = Path(torch.hub.get_dir()) / "checkpoints" / Path(pretrained.url).name
        held = f"{name}, of which there are no weights at {place} ({one_line(error)})"
        allowed = (
            "backbone_weights=FILE, weights in torch.hub's cache, or the internet, to fetch them"
        )
        raise SettingError("backbone", held, allowed) from None
    if weights != "auto":
        fill(_headless(body, name), weights)
    return _headless(body, name), transform_of(pretrained.transforms())


def transform_of(found: object) -> Transform:
    """Return the transform of a network's own weights."""
    keys = "crop_size", "resize_size", "mean", "std"
    size, shorter, mean, std = (getattr(found, key) for key in keys)
    how = getattr(getattr(found, "interpolation", None), "value", "")
    mode = "bicubic" if how == "bicubic" else "bilinear"
    return Transform(size[0], tuple(mean), tuple(std), mode, shorter[0])


def _headless(body: nn.Module, name: str) -> nn.Module:
    """Put the identity in place of the layer that answers with classes."""
    for head in HEADS:
        layer = getattr(body, head, None)
        if isinstance(layer, nn.Sequential):
            layer[-1] = nn.Identity()
            return body
        if isinstance(layer, nn.Linear | nn.Identity):
            setattr(body, head, nn.Identity())
            return body
    raise SettingError("backbone", name, "a classifier of images that ends in a linear layer")
