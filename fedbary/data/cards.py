"""The places of data that the files of a Hugging Face folder name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import yaml

CARD, SETTINGS = "README.md", ".huggingface.yaml"
"""The files that name places of data; `datasets` fetches from there, wherever that is."""

_PLACES = ("data_files", "data_dir")


def require_local(folder: Path) -> None:
    """Raise a ValueError if files of a local data set lie outside of its folder.

    For a local folder nothing may be fetched, nor read from elsewhere on this machine.
    """
    from huggingface_hub import DatasetCard

    said: list[Any] = []
    if (folder / CARD).is_file():
        said.append(DatasetCard.load(folder / CARD).data.to_dict())
    if (folder / SETTINGS).is_file():
        said.append(yaml.safe_load((folder / SETTINGS).read_text(encoding="utf-8")))
    for place in _texts([held.get("configs") for held in said if isinstance(held, dict)]):
        if urlparse(place).scheme or Path(place).is_absolute() or ".." in Path(place).parts:
            raise ValueError(f"its data lie at {place!r}, not in the folder")


def _texts(held: Any, is_place: bool = False) -> Iterator[str]:
    """Yield the texts that stand anywhere under the keys of places."""
    if isinstance(held, str) and is_place:
        yield held
    elif isinstance(held, list):
        for part in held:
            yield from _texts(part, is_place)
    elif isinstance(held, dict):
        for key, part in held.items():
            yield from _texts(part, is_place or key in _PLACES)
