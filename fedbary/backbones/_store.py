"""A folder of computed features, by each input's hash."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedbary.data.digest import row_hashes
from fedbary.runs.whole import private_folder, read_tensors, write_tensors

log = logging.getLogger("flwr.fedbary")

_OF = "of"
"""The mark of a file with the backbone and the inputs that it is of."""


class Store:
    """A folder of features of one backbone, for inputs of one shape and type.

    Every pass adds a file with the inputs' hashes and their features, written whole, with a digest.
    A file that is not as it was written is left out, and its features are computed anew. The owner
    alone may read the folder. Several processes may use it at once; features that two compute at
    the same time are stored twice.

    Parameters
    ----------
    folder
        Parent of the backbone's folder.
    digest
        The backbone's.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder, self._digest = folder / "features", digest

    def features(self, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the features (N, D) of inputs (N, …); `compute` makes missing ones."""
        kind = f"{tuple(x.shape[1:])} {x.dtype}"
        part = hashlib.blake2b(kind.encode(), digest_size=4).hexdigest()
        place, of = self._folder / self._digest / part, f"{self._digest} {kind}"
        rows = row_hashes(x)
        found: dict[int, Tensor] = {}
        wanted = set(rows.tolist())
        for file in sorted(place.glob("*.safetensors")):
            found |= _read(file, of, wanted - found.keys())
        missing = torch.tensor([row not in found for row in rows.tolist()], dtype=torch.bool)
        if missing.any():
            made = compute(x[missing])
            found |= dict(zip(rows[missing].tolist(), made, strict=True))
            self._write(place, of, rows[missing], made)
        features = [found[row] for row in rows.tolist()]
        return torch.stack(features) if len({len(f) for f in features}) == 1 else compute(x)

    def _write(self, place: Path, of: str, rows: Tensor, features: Tensor) -> None:
        """Write a file, named by its inputs; the log reports a failure."""
        name = hashlib.blake2b(rows.numpy().tobytes(), digest_size=8).hexdigest()
        try:
            for folder in (self._folder, place.parent, place):
                private_folder(folder)
            held = {"rows": rows, "features": features}
            write_tensors(place / f"{name}.safetensors", held, {_OF: of})
        except OSError as error:
            log.warning("Features are not kept in %s: %s", place, error)


def _read(file: Path, of: str, wanted: set[int]) -> dict[int, Tensor]:
    """Return a file's features of some rows; none from a file that is not as it was written."""
    try:
        held, marks = read_tensors(file, (_OF,))
        rows, features = held["rows"], held["features"]
        if marks.get(_OF) != of or not _are_sound(rows, features):
            raise ValueError("it holds no features of this backbone, with a digest")
    except (OSError, ValueError, KeyError) as error:
        log.warning("Features in %s are computed anew: %s", file, error)
        return {}
    return {row: features[at] for at, row in enumerate(rows.tolist()) if row in wanted}


def _are_sound(rows: Tensor, features: Tensor) -> bool:
    """Return whether these are hashes (N,) and finite features (N, D)."""
    shapes = rows.ndim == 1 and features.ndim == 2 and len(rows) == len(features)
    types = rows.dtype == torch.int64 and features.dtype == torch.float32
    return shapes and types and bool(features.isfinite().all())
