"""Networks of timm, and those on Hugging Face that are laid out for it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import nn

from fedbary.backbones._body import Named, Transform, cached_or_fetched, fill
from fedbary.data.forms import DataSource
from fedbary.errors import SettingError
from fedbary.parts.imports import library

EXTRA = "vision"


def make(source: DataSource, weights: str) -> tuple[nn.Module, Transform]:
    """Return a network without its head, and its transform.

    Raises
    ------
    SettingError
        If timm is not installed or has no such network, or its weights are not there.
    """
    name = source.text
    timm = library("timm", EXTRA, "backbone", name)
    is_hub = source.kind == "hf"
    called = f"hf-hub:{source.held}" if is_hub else source.held
    if not is_hub and not timm.is_model(called.partition(".")[0]):
        close = ", ".join(timm.list_models(f"*{called[:8]}*")[:5]) or "timm.list_models() has them"
        raise SettingError("backbone", name, f"a network of timm: {close}")
    if not is_hub and "." in called:
        known = timm.list_pretrained(f"{called.partition('.')[0]}.*")
        if called not in known:
            raise SettingError("backbone", name, f"a tag that timm knows: {', '.join(known)}")

    def read() -> nn.Module:
        found: nn.Module = timm.create_model(called, pretrained=weights == "auto", num_classes=0)
        return found

    try:
        body = cached_or_fetched(read, asks=True)
    except Exception as error:  # noqa: BLE001 - a network, a hub and a file fail in many ways
        raise _absent(name, called, error) from None
    if weights != "auto":
        fill(body, weights, conversion(body))
    config = timm.data.resolve_model_data_config(body)
    mode = "bicubic" if config["interpolation"] == "bicubic" else "bilinear"
    size = config["input_size"][1]
    return body, Transform(size, tuple(config["mean"]), tuple(config["std"]), mode)


def conversion(body: nn.Module) -> Callable[[Named], Named]:
    """Return timm's conversion of a file's tensors to those of a network; most have one."""
    own = getattr(sys.modules[type(body).__module__], "checkpoint_filter_fn", None)
    return dict if own is None else lambda held: dict(own(held, body))


def _absent(name: str, called: str, error: Exception) -> SettingError:
    """Return the error of absent weights; it does not tell the server where a site looked."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from timm.models import get_pretrained_cfg_value

    of_hub = called.partition(":")[2] or get_pretrained_cfg_value(called, "hf_hub_id") or called
    place = f"{HF_HUB_CACHE}/models--{str(of_hub).replace('/', '--')}"
    allowed = (
        "backbone_weights=FILE, weights in Hugging Face's cache, or the internet, to fetch them"
    )
    held = f"{name}, of which there is nothing in {place} ({type(error).__name__})"
    return SettingError("backbone", held, allowed)
