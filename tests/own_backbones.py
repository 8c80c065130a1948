"""Backbones of one's own, as `backbone=own_backbones:…` names them."""

import torch
from torch import nn

from fedbary.seeds import derive_seed
from fedbary.variational.layers import seeded


def tiny():
    """Return a network of 12 features of grey images, its batch norm's statistics far from 0."""
    with seeded(derive_seed(0, "tiny")):
        body = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2), nn.BatchNorm2d(12), nn.ReLU(), nn.Dropout(0.5)
        )
        nn.init.normal_(body[1].running_mean)
    return body, {"size": 12, "mean": (0.3,), "std": (0.2,)}


def other():
    """Return the same network with other weights."""
    body, transform = tiny()
    nn.init.ones_(body[0].bias)
    return body, transform


def wide():
    """Return a network of 256 features of grey images: its messages are mostly numbers."""
    with seeded(derive_seed(0, "wide")):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU()), {"size": 8}


def flat():
    """Return the layer of a network that answers with no features."""
    return nn.Flatten(0)


def infinite():
    """Return a network whose features are not finite."""
    body = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
    body(torch.zeros(1, 64))
    nn.init.constant_(body[1].bias, torch.inf)
    return body


def number():
    return 3
