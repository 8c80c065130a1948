"""The device that works on tensors, and how clients on Ray share GPUs."""

from __future__ import annotations

import math
import os

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


def gpu_share(settings: Settings) -> float:
    """Return the fraction of a GPU for each client that works on Ray: 0, or 1/n.

    `auto` divides the GPUs among the clients at work at once; a fraction by hand is the least that
    a client has. Flower starts as many clients as all GPUs together would hold, but Ray places each
    on one GPU: those beyond the places never answer. The numbers are equal for 1/n alone.
    """
    if settings.gpus_per_client != "auto":
        share = float(settings.gpus_per_client)
        return share and 1 / math.floor(1 / share + 1e-9)
    if torch_device(settings).type != "cuda":
        return 0.0
    at_once = min(settings.clients, max(1, (os.cpu_count() or 1) // settings.cpus_per_client))
    return 1 / math.ceil(at_once / torch.cuda.device_count())
