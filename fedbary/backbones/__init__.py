"""Pretrained networks that turn images into features; their weights never change nor travel.

A backbone is a transformation of data: each client passes its images through it once, and trains a
head on what comes out. Its name says where it is from, see `fedbary.data.forms.BACKBONES`.
"""

from __future__ import annotations

import torch
from torch import nn

from fedbary.backbones import _own, _timm, _torchvision
from fedbary.backbones._body import Backbone
from fedbary.data.forms import BACKBONES, FUNCTION, backbone_of
from fedbary.data.paths import user_path
from fedbary.data.unchanged import Kept, state_of
from fedbary.errors import SettingError

__all__ = ["Backbone", "load"]


MAKERS = {"timm": _timm, "hf": _timm, "torchvision": _torchvision, FUNCTION: _own}
"""What makes networks of each kind of source."""


_loaded: Kept[Backbone] = Kept(4)


def load(name: str, weights: str, size: int | str, device: torch.device) -> Backbone:
    """Return a backbone, read once while its weights stay as they are, frozen, in evaluation mode.

    Parameters
    ----------
    name
        ``timm:NAME``, ``torchvision:NAME``, ``hf:OWNER/NAME`` or ``package.module:factory``.
    weights
        ``auto``: the library's own; the path of a file; or an installed package that holds one.
    size
        Side in pixels that images are scaled to; ``auto``: that of the backbone.
    device
        Where images pass through it.

    Raises
    ------
    SettingError
        If it or its weights cannot be had; the message says what is missing and where it must lie.
    """
    state = state_of(user_path(weights))
    by = name, weights, size, device
    return _loaded.get(by, state, lambda: _load(*by))


def _load(name: str, weights: str, size: int | str, device: torch.device) -> Backbone:
    source = backbone_of(name)
    if source is None:
        raise SettingError("backbone", name, f"none, {BACKBONES}")
    body, transform = MAKERS[source.kind].make(source, weights)
    if size != "auto":
        transform = transform.sized(int(size))
    return Backbone(name, _frozen(body).to(device), transform)


def _frozen(body: nn.Module) -> nn.Module:
    return body.eval().requires_grad_(False)
