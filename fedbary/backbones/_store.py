"""A folder of computed features, by each input's hash."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedbary.data.digest import row_hashes
from fedbary.runs.whole import write_whole

log = logging.getLogger("flwr.fedbary")


class Store:
    """A folder of features of one backbone, for inputs of one shape and type.

    Every pass adds a file with the inputs' hashes and their features, written whole. Several
    processes may use the folder at once; features that two compute at the same time are stored
    twice.

    Parameters
    ----------
    folder
        Parent of the backbone's folder.
    digest
        The backbone's.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder = folder / "features" / digest

    def features(self, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the features (N, D) of inputs (N, …); `compute` makes missing ones."""
        kind = f"{tuple(x.shape[1:])} {x.dtype}"
        place = self._folder / hashlib.blake2b(kind.encode(), digest_size=4).hexdigest()
        rows = row_hashes(x)
        found: dict[int, Tensor] = {}
        wanted = set(rows.tolist())
        for file in sorted(place.glob("*.safetensors")):
            found |= _read(file, wanted - found.keys())
        missing = torch.tensor([row not in found for row in rows.tolist()], dtype=torch.bool)
        if missing.any():
            made = compute(x[missing])
            found |= dict(zip(rows[missing].tolist(), made, strict=True))
            _write(place, rows[missing], made)
        return torch.stack([found[row] for row in rows.tolist()]) if len(x) else compute(x)


def _read(file: Path, wanted: set[int]) -> dict[int, Tensor]:
    """Return a file's features of some rows; none from a damaged file."""
    try:
        held = load_file(file)
        rows, features = held["rows"].tolist(), held["features"]
        return {row: features[at] for at, row in enumerate(rows) if row in wanted}
    except (OSError, SafetensorError, KeyError, IndexError):
        return {}


def _write(place: Path, rows: Tensor, features: Tensor) -> None:
    """Write a file, named by its content; the log reports a failure."""
    name = hashlib.blake2b(rows.numpy().tobytes(), digest_size=8).hexdigest()
    try:
        place.mkdir(parents=True, exist_ok=True)
        held = save({"rows": rows, "features": features.contiguous()})
        write_whole(place / f"{name}.safetensors", held)
    except OSError as error:
        log.warning("Features are not kept in %s: %s", place, error)
