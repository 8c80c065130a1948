"""The digest of a run's data in its folder: words for people, hashes apart from them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from fedbary.data.digest import WORDS, Digest
from fedbary.data.paths import content_of
from fedbary.errors import SettingError
from fedbary.runs.whole import read_tensors, write_tensors, write_whole

DATA = "data.json"
"""The file of the words."""

ROWS = "data-rows.safetensors"
"""File of the hashes, which show whether an input was trained on."""


def write_digest(folder: Path, digest: Digest) -> None:
    """Write a digest to a run's folder."""
    words = json.dumps(digest.said).encode() + b"\n"
    tensors = {"rows": digest.rows, "trained": digest.trained}
    write_tensors(folder / ROWS, tensors, {"words": _sha256(words)})
    write_whole(folder / DATA, words)


def read_digest(folder: Path) -> Digest | None:
    """Return a run's digest; None if one of the files is missing.

    Raises
    ------
    SettingError
        If one is damaged.
    """
    files = folder / DATA, folder / ROWS
    if not all(file.exists() for file in files):
        return None
    try:
        words, (held, marks) = content_of(files[0]), read_tensors(files[1], ("words",))
        if marks and marks["words"] != _sha256(words):
            raise ValueError("its content is not what was written")
        said = json.loads(words)
        rows, trained = held["rows"], held["trained"]
        if rows.shape != (said["rows"],) or trained.shape != rows.shape:
            raise ValueError(f"{len(rows)} rows, where {DATA} says {said['rows']}")
        if (rows.dtype, trained.dtype) != (torch.int64, torch.bool):
            raise ValueError(f"hashes of type {rows.dtype}, marks of type {trained.dtype}")
        return Digest({name: said[name] for name in WORDS}, rows, trained)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SettingError(f"{files[0]}, {ROWS}", error, "the file as the run wrote it") from None


def _sha256(words: bytes) -> str:
    return hashlib.sha256(words).hexdigest()
