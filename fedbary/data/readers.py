"""Reading a source: the arguments of the file that reads it, and the images that it returns."""

from __future__ import annotations

import gzip
import io
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from fedbary.data.deal import tenth_of_each_class
from fedbary.data.forms import FUNCTION, PATH, DataSource, libraries
from fedbary.data.grouping import Units
from fedbary.data.image_files import Shape
from fedbary.errors import SettingError
from fedbary.seeds import derive_seed

RATIO = 200
"""Largest ratio of a large file's unpacked bytes to its own; images and tables stay far below."""

SMALL_ARRAY = 64 * 2**20
"""Bytes up to which an array may be packed by any ratio."""

SMALL_TABLE = 2**30
"""Bytes of memory up to which a table may be packed by any ratio."""

CELL_BYTES = 48
"""Memory of a table's cell, beside its text, while the table is read; as measured."""

TEXT_COPIES = 4
"""Copies of a cell's text while the table is read."""

UNPACKERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
"""What opens a packed file, by the end of its name."""

BUFFER_BYTES = 2**17

_ENDS = (b",", b";", b"\t", b"|", b"\n")
"""Ends of cells, whatever separates a table's cells."""


def require_plausible(path: Path, cells: int, text_bytes: int) -> None:
    """Raise a SettingError if a packed table would take more memory than its file allows.

    Parameters
    ----------
    path : Path
        The file.
    cells : int
        Cells of the table.
    text_bytes : int
        Bytes of all texts in its cells.
    """
    most = max(SMALL_TABLE, RATIO * path.stat().st_size)
    if (held := CELL_BYTES * cells + TEXT_COPIES * text_bytes) > most:
        raise SettingError(
            str(path),
            f"a packed table that would take {held / 2**20:,.0f} MiB or more",
            f"at most {most / 2**20:,.0f} MiB, of so small a file; a .csv file has no such limit",
        )


class Counted(io.RawIOBase):
    """The bytes of a packed table, counted while they are read.

    `readinto` raises a SettingError as `require_plausible` does, before the memory is taken.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, UNPACKERS[path.suffix.lower()](path, "rb")
        self._cells = self._bytes = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        content = self._file.read(len(view))
        view[: len(content)] = content
        self._bytes += len(content)
        self._cells += sum(map(content.count, _ENDS))
        require_plausible(self._path, self._cells, self._bytes)
        return len(content)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def opened(path: Path) -> IO[bytes]:
    """Open a table's file; one that is packed is unpacked as it is read, see `Counted`."""
    if path.suffix.lower() not in UNPACKERS:
        return open(path, "rb")
    return cast(IO[bytes], io.BufferedReader(Counted(path), BUFFER_BYTES))


LabelledImages = tuple[np.ndarray, np.ndarray, Tensor | None]
"""Images (N, H, W) or (N, H, W, 3), their labels (N,), and their groups (N,) if they have some."""

TESTS = ("test", "testing", "validation", "valid", "val")
"""Names of the test part; the first that exists and has labels is taken."""

NOTES = "what was read"
"""Optional entry beside the arrays: lines that say what was read."""

GROUPS = ("groups to train on", "groups to test on")
"""Optional entries beside the arrays: the examples' groups, (N,)."""


@dataclass(frozen=True)
class Reading:
    """Arguments of a reader beside the source.

    Parameters
    ----------
    data_dir : Path
        Folder of data sets that are not found otherwise, and of those that are fetched.
    download : bool
        True: absent data may be fetched.
    target : str
        Column to predict.
    shape : tuple of int
        Channels, height and width that pictures become; None for theirs, which must be all alike.
    resize : str
        Treatment of pictures of another size, see `fedbary.data.image_files.read_image`.
    id : str
        Column of a table that names its rows; its cells are kept as text.
    group : str
        What names the images' groups: a column, arrays, or `FOLDER`; "" for none.
    """

    data_dir: Path
    download: bool = False
    target: str = ""
    shape: Shape | None = None
    resize: str = "none"
    id: str = ""
    group: str = ""

    @property
    def group_arrays(self) -> tuple[str, ...]:
        """Names of the arrays that name the groups of ``x_train`` and ``x_test``."""
        return (f"{self.group}_train", f"{self.group}_test") if self.group else ()


SAVED = ("dataset_dict.json", "state.json")
"""Files that mark a folder made by `save_to_disk` of Hugging Face's datasets."""


def saved_sets(folder: Path) -> list[Path]:
    """Return the data sets that `save_to_disk` made: a folder itself, or else all those in it.

    The list is empty for any other folder, and for none.
    """
    inside = sorted(folder.glob("[!.]*/")) if folder.is_dir() else []
    for places in ([folder], inside):
        if places and all(any((place / file).is_file() for file in SAVED) for place in places):
            return places
    return []


Reader = Callable[[DataSource, Reading], Any]


def reader(source: DataSource, data_dir: Path, *functions: str) -> Reader | None:
    """Return the first of some functions that the file that reads a source has; None for none."""
    module = f"formats.{source.kind}"
    if source.kind in libraries():
        module = f"sources.{source.kind}"
    elif source.kind in (PATH, FUNCTION):
        folder = source.path(data_dir)
        is_folder = bool(source.text) and folder.is_dir()
        if not (is_folder or source.is_code):
            return None
        of_folder = "sources.hf" if saved_sets(folder) else "formats._folder"
        module = of_folder if is_folder else "sources._function"
    found = import_module(f"fedbary.data.{module}")
    return next((getattr(found, name) for name in functions if hasattr(found, name)), None)


def arrays_of(
    classes: Sequence[str], train: LabelledImages, test: LabelledImages | None
) -> dict[str, Any]:
    """Return the four arrays of a data set of images and the classes' names.

    A set without a test part is split by `parted`.
    """
    if test is None:
        return {**parted(*train), "classes": classes}
    return {**_arrays(train, test), "classes": classes}


def parted(x: np.ndarray, y: np.ndarray, groups: Tensor | None = None) -> dict[str, Any]:
    """Return the four arrays of examples; a fixed tenth of each class is the test part.

    Of groups it is a tenth of those whose commonest class it is.
    """
    units = Units.of(np.arange(len(y)), groups)
    rng = np.random.default_rng(derive_seed(0, "split"))
    tested = tenth_of_each_class(units.strata(torch.from_numpy(y)), rng)[units.unit]
    sides = ((x[s], y[s], groups if groups is None else groups[s]) for s in (~tested, tested))
    return _arrays(*sides)


def _arrays(train: LabelledImages, test: LabelledImages) -> dict[str, Any]:
    held = {"x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1]}
    groups = zip(GROUPS, (train[2], test[2]), strict=True)
    return held | {name: numbers for name, numbers in groups if numbers is not None}
