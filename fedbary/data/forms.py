"""The forms that the names of data sets and backbones may have, beside names and paths."""

from __future__ import annotations

from fedbary.parts.registry import is_factory

HUB = "hf:"
"""How the names of Hugging Face's data sets begin, ``hf:owner/name``, and those of local copies."""

TORCHVISION = "torchvision:"
"""How the names of torchvision's data sets begin, ``torchvision:KMNIST``."""

TIMM = "timm:"
"""How the names of timm's networks begin, ``timm:resnet18``."""

BACKBONES = f"{TIMM}NAME, {TORCHVISION}NAME, {HUB}OWNER/NAME, or package.module:factory"
"""The forms that the name of a backbone may have."""

PARQUET = ".parquet"
"""How the names of Parquet files end."""


def has_columns(name: str) -> bool:
    """Whether a data set of images holds columns by name: one of Hugging Face, a Parquet file."""
    return name.startswith(HUB) or name.lower().endswith(PARQUET)


def is_own(name: str) -> bool:
    """Whether a name is that of a function of one's own, ``package.module:function``."""
    return is_factory(name) and not name.startswith((HUB, TORCHVISION))


def is_source(name: str) -> bool:
    """Whether a name says where data come from: a library, or a function of one's own."""
    return name.startswith((HUB, TORCHVISION)) or is_factory(name)


def is_own_backbone(name: str) -> bool:
    """Whether the name of a backbone is that of a function of one's own."""
    return is_factory(name) and not name.startswith((TIMM, TORCHVISION, HUB))


def is_backbone(name: str) -> bool:
    """Whether a name has one of the forms of `BACKBONES`."""
    begun = (name.startswith(form) and name != form for form in (TIMM, TORCHVISION, HUB))
    return any(begun) or is_own_backbone(name)
