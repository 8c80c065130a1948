"""Images as a site or the server holds them, made once per process."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fedbary.backbones import Backbone
from fedbary.data import deal
from fedbary.data.images import Dataset, Normaliser
from fedbary.data.shard import Shard
from fedbary.tasks import _features


@lru_cache(maxsize=1024)
def moved(shard: Shard, device: torch.device) -> Shard:
    """Return a shard on a device, once per process."""
    return Shard(*(held.to(device) for held in vars(shard).values()))


@lru_cache(maxsize=4)
def scored(
    held: Dataset,
    dealt: deal.Deal,
    device: torch.device,
    by: Normaliser | None = None,
    backbone: Backbone | None = None,
    folder: str = "",
) -> tuple[Tensor, Tensor]:
    """Return the inputs that models are scored on, in their form, and labels, on a device."""
    x, y = deal.evaluation_data(held, dealt)
    x = _features.kept_features(x, backbone, folder) if backbone else x
    return (by(x) if by else x).to(device), y.to(device)
