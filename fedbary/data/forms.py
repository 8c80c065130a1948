"""The forms that the name of a data set may have, beside names and paths."""

from __future__ import annotations

from fedbary.parts.registry import is_factory

HUB = "hf:"
"""How the names of Hugging Face's data sets begin, ``hf:owner/name``, and those of local copies."""

TORCHVISION = "torchvision:"
"""How the names of torchvision's data sets begin, ``torchvision:KMNIST``."""


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
