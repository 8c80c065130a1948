"""A method that does not fit into memory is refused with its size, before a run has gone far."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch import Tensor

from fedbary.errors import SettingError

PART = 0.5
"""The part of a machine's memory that networks may take that are held beside one another."""


def require_room(setting: str, networks: int, model: Mapping[str, Tensor]) -> None:
    """Raise a SettingError if so many networks take more than half of the machine's memory.

    Parameters
    ----------
    setting
        The setting that sets their number.
    networks
        Number of them.
    model
        One of them.
    """
    each = sum(tensor.numel() * tensor.element_size() for tensor in model.values())
    room = int(PART * memory())
    if networks * each > room:
        size = f"{networks} networks of {each:,} bytes, {networks * each:,} bytes"
        raise SettingError(setting, size, f"at most {room:,} bytes, half of this machine's memory")


def memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
