"""The device that works on tensors."""

from __future__ import annotations

import torch

from fedbary.errors import SettingError
from fedbary.settings.config import Settings


def torch_device(settings: Settings) -> torch.device:
    """Return the device to work on; `auto` is a GPU if there is one."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise SettingError("device", "cuda", "auto or cpu, as there is no GPU that PyTorch can use")
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(settings.device)
