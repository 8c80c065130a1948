"""Data sets as tensors: a file of this package per data set, found by its name.

A data set is one module whose name has no leading underscore. It defines

``read(data_dir, download)``
    returns the arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``, laid out as
    `fedbary.data.images._dataset` says, and perhaps ``classes``, their names;
``AUGMENT``
    True: training images are cropped and flipped at random; "crop" or "flip": one of them.

There is no other registration: ``load("<module>", ...)`` works from the file alone.
"""

import importlib
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

from fedbary.data.formats.npz import NAMES, PARTS, read_npz_arrays
from fedbary.data.forms import (
    Kept,
    elsewhere,
    endings,
    source_of,
    source_state,
    state_of,
    user_path,
)
from fedbary.data.image_files import Shape
from fedbary.data.image_folder import UNNAMED
from fedbary.data.images._dataset import (
    MAX_FLOAT,
    UNREADABLE,
    Dataset,
    Normaliser,
    from_arrays,
    pixel_sums,
)
from fedbary.data.readers import GROUPS, Reading, reader
from fedbary.errors import SettingError, one_line
from fedbary.parts.registry import modules

__all__ = [
    "MAX_FLOAT",
    "Dataset",
    "Normaliser",
    "load",
    "names",
    "pixel_sums",
]

_loaded: Kept[Dataset] = Kept()


def names() -> tuple[str, ...]:
    """Return the names of the data sets here, in alphabetical order."""
    return modules("data/images")


def load(
    name: str,
    data_dir: Path | str,
    download: bool,
    shape: Shape | None = None,
    resize: str = "none",
    target: str = UNNAMED,
    group: str = "",
) -> Dataset:
    """Return a data set as tensors, read once, and anew where its files have changed.

    Parameters
    ----------
    name : str
        One of `names`; a set of a library, see `fedbary.data.sources`; or
        ``package.module:function``, a function that returns the four arrays. Or the path of a file
        in one of `fedbary.data.formats`, or of a folder of images by class. A path is absolute,
        relative to the working directory, or else relative to ``data_dir``.
    data_dir : Path or str
        Folder of the data sets. ``<data_dir>/<name>.npz`` is read in preference to anything else.
    download : bool
        True: a data set that is not under ``data_dir`` may be fetched into it.
    shape : tuple of int
        Channels, height and width that pictures (not arrays) become; by default theirs, which
        must be all alike.
    resize : str
        Treatment of pictures of another size, see `fedbary.data.image_files.read_image`.
    target : str
        The column of the classes, of a set that has columns.
    group : str
        What names the images' groups, see `Reading`.

    Returns
    -------
    Dataset
        The same object for the same arguments (whatever ``download`` is), until its files change.
        Treat its tensors as read-only.

    Raises
    ------
    SettingError
        The name is unknown, the data cannot be had, or a file has invalid content; the message says
        which.
    """
    reading = Reading(user_path(data_dir).absolute(), False, target, shape, resize, group=group)
    there = _laid_out_state(name, reading)
    state = source_state(source_of(name), reading.data_dir), there
    now = replace(reading, download=download)
    return _loaded.get((name, reading), state, lambda: _read(name, now))


def _laid_out_state(name: str, reading: Reading) -> Hashable:
    return state_of(reading.data_dir / f"{name}.npz") if name in names() else None


def _read(name: str, reading: Reading) -> Dataset:
    try:
        held = _read_anew(name, reading)
    except MemoryError as error:
        raise SettingError("dataset", error, "a data set that fits into memory") from error
    if reading.group and (held.groups is None or held.groups_test is None):
        allowed = "none, a column beside images, or folder; arrays need the names of "
        allowed += f"{' and '.join(reading.group_arrays)}"
        raise SettingError("group", reading.group, allowed)
    return held


def _read_anew(name: str, reading: Reading) -> Dataset:
    if name in names():
        return _named(name, reading.data_dir, reading.download)
    source = source_of(name)
    read = reader(source, reading.data_dir, "images", "image_columns")
    if read is None:
        formats = " or ".join([*endings("images"), *endings("image_columns")])
        allowed = f"{', '.join(names())}, the path of an {formats} file or of a folder of "
        allowed += f"images, {elsewhere('images', 'image_columns')}"
        raise SettingError("dataset", name, allowed)
    called = str(source.path(reading.data_dir)) if source.kind == "npz" else name
    arrays = read(source, reading)
    known = zip(GROUPS, reading.group_arrays, strict=False)
    groups = {key: arrays[array] for key, array in known if array in arrays}
    return from_arrays(name, {**arrays, **groups}, called)


def _named(name: str, data_dir: Path, download: bool) -> Dataset:
    module = importlib.import_module(f"{__name__}.{name}")
    augment = getattr(module, "AUGMENT", False)
    laid_out = data_dir / f"{name}.npz"
    if laid_out.exists():
        arrays = read_npz_arrays(laid_out, (*PARTS, NAMES))
        return from_arrays(name, arrays, str(laid_out), augment)
    try:
        arrays = module.read(data_dir, download)
    except UNREADABLE as error:
        allowed = f"a folder with {name}.npz or the files of {name}, or download=true and a network"
        raise SettingError("data_dir", str(data_dir), f"{allowed} ({one_line(error)})") from error
    return from_arrays(name, arrays, name, augment)
