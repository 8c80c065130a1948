"""The digest of a run's data in its folder: words for people, hashes apart from them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load

from fedbary.data.digest import WORDS, Digest
from fedbary.errors import SettingError
from fedbary.runs.whole import write_tensors, write_whole

DATA = "data.json"
"""The file of the words."""

ROWS = "data-rows.safetensors"
"""File of the hashes, which show whether an input was trained on."""


def write_digest(folder: Path, digest: Digest) -> None:
    """Write a digest to a run's folder."""
    write_tensors(folder / ROWS, {"rows": digest.rows, "trained": digest.trained})
    write_whole(folder / DATA, json.dumps(digest.said).encode() + b"\n")


def read_digest(folder: Path) -> Digest | None:
    """Return a run's digest; None if one of the files is missing.

    Raises
    ------
    SettingError
        If one is damaged.
    """
    files = folder / DATA, folder / ROWS
    if not all(file.is_file() for file in files):
        return None
    try:
        said, held = json.loads(files[0].read_bytes()), load(files[1].read_bytes())
        return Digest({name: said[name] for name in WORDS}, held["rows"], held["trained"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError, SafetensorError) as error:
        raise SettingError(f"{files[0]}, {ROWS}", error, "the file as the run wrote it") from None
