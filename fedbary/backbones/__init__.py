"""Pretrained networks that make features of images or texts; their weights never change nor travel.

Each client passes its inputs through the backbone once, and trains a model on the features. The
backbone's name gives its source, see `fedbary.data.forms.BACKBONES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from fedbary.backbones import _own, _timm, _torchvision, _transformers
from fedbary.backbones._body import Backbone
from fedbary.backbones._transformers import TextBackbone, TrimPadding
from fedbary.data.forms import BACKBONES, FUNCTION, Kept, backbone_of, state_of, user_path
from fedbary.errors import SettingError
from fedbary.runs.own_code import code_digest

__all__ = ["Backbone", "TextBackbone", "load", "load_text"]


MAKERS = {"timm": _timm, "hf": _timm, "torchvision": _torchvision, FUNCTION: _own}
"""Makers of networks, by kind of source."""


_loaded: Kept[Backbone] = Kept(4)


def load(
    name: str,
    weights: str,
    size: int | str,
    device: torch.device,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
) -> Backbone:
    """Return a backbone, read once while its weights stay as they are, frozen, in evaluation mode.

    Parameters
    ----------
    name
        ``timm:NAME``, ``torchvision:NAME``, ``hf:OWNER/NAME`` or ``package.module:factory``.
    weights
        ``auto``: the library's own; the path of a file; or an installed package that holds one.
    size
        Side in pixels that images are scaled to; ``auto``: the backbone's.
    device
        Device that runs it.
    mean, std
        Mean and standard deviation of each channel that its weights were trained with; empty: those
        that its name stands for.

    Raises
    ------
    SettingError
        If it or its weights cannot be had; the message says what is missing and where it must lie.
    """
    source = backbone_of(name)
    if source is None:
        raise SettingError("backbone", name, f"none, {BACKBONES}")
    code = code_digest("backbone", name) if source.is_code else ""

    def read() -> Backbone:
        body, transform = MAKERS[source.kind].make(source, weights)
        if size != "auto":
            transform = transform.sized(int(size))
        transform = replace(transform, mean=mean or transform.mean, std=std or transform.std)
        return Backbone(name, _frozen(body).to(device), transform, code=code)

    state = state_of(user_path(weights)), code
    return _loaded.get((name, weights, size, device, mean, std), state, read)


_loaded_texts: Kept[TextBackbone] = Kept(4)


def load_text(
    name: str, weights: str, tokens: int | str, download: bool, device: torch.device
) -> TextBackbone:
    """Return a backbone of texts, frozen, read once while its folder stays as it is.

    Parameters
    ----------
    name
        ``hf:OWNER/NAME``, a model of transformers, or ``hf:PATH``, a folder of one.
    weights
        ``auto``; the path of a folder of the model; or an installed package that holds one.
    tokens
        Number of tokens of a text that it reads; ``auto``: the number in its files.
    download
        True: an absent model may be fetched.
    device
        Device that runs it.

    Raises
    ------
    SettingError
        If it cannot be had; the message says what is missing and where it must lie.
    """
    source = backbone_of(name)
    if source is None or source.kind != "hf":
        raise SettingError("backbone", name, "hf:OWNER/NAME or hf:PATH, a model of transformers")

    def read() -> TextBackbone:
        body, encoder = _transformers.make(source, weights, tokens, download)
        return TextBackbone(name, _frozen(body).to(device), TrimPadding(), encoder)

    state = state_of(user_path(source.held if weights == "auto" else weights))
    return _loaded_texts.get((name, weights, tokens, download, device), state, read)


def _frozen(body: nn.Module) -> nn.Module:
    return body.eval().requires_grad_(False)
