"""The forms that the name of a data set may have, beside names and paths."""

from __future__ import annotations

from fedbary.registry import is_factory

HUB = "hf:"
"""How the names of Hugging Face's data sets begin, ``hf:owner/name``, and those of local copies."""

TORCHVISION = "torchvision:"
"""How the names of torchvision's data sets begin, ``torchvision:KMNIST``."""


def is_source(name: str) -> bool:
    """Whether a name says where data come from: a library, or a function of one's own."""
    return name.startswith((HUB, TORCHVISION)) or is_factory(name)
