"""Hugging Face's cache, and its hub."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

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
