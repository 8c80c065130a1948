"""Data sets as tensors: a file of this package per data set, found by its name.

A data set is one module whose name has no leading underscore. It defines

``read(data_dir, download)``
    the arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``, laid out as in an ``.npz`` file
    (`fedbary.data.images._dataset` says how);
``AUGMENT = True``
    only where training images are to be cropped and flipped at random.

Nothing else has to be told: ``load("<module>", ...)`` works from the file alone.
"""

import importlib
from pathlib import Path

from fedbary.data.images._batches import batch_source, inputs
from fedbary.data.images._dataset import UNREADABLE, Dataset, from_arrays, read_npz
from fedbary.errors import SettingError, one_line
from fedbary.registry import modules

__all__ = ["Dataset", "batch_source", "inputs", "load", "names"]

_loaded: dict[tuple[str, Path], Dataset] = {}


def names() -> tuple[str, ...]:
    """Return the names of the data sets that ship with the package, in alphabetical order."""
    return modules("data/images")


def load(name: str, data_dir: Path | str, download: bool) -> Dataset:
    """Return a data set as tensors, read once per process.

    Parameters
    ----------
    name : str
        One of `names`, or the path of an ``.npz`` file: absolute, relative to the working
        directory, or else relative to ``data_dir``.
    data_dir : Path or str
        Where data sets lie. ``<data_dir>/<name>.npz`` is read in preference to anything else.
    download : bool
        Whether a data set that is not under ``data_dir`` may be fetched into it.

    Returns
    -------
    Dataset
        The same object for the same ``name`` and ``data_dir`` throughout the process. Treat its
        tensors as read-only.

    Raises
    ------
    SettingError
        The name is unknown, the data are absent and cannot be had, or a file holds what it
        must not; the message says which.
    """
    key = name, Path(data_dir).expanduser().absolute()
    if key not in _loaded:
        try:
            _loaded[key] = _read(*key, download)
        except MemoryError as error:
            raise SettingError("dataset", error, "one that fits into this memory") from error
    return _loaded[key]


def _read(name: str, data_dir: Path, download: bool) -> Dataset:
    if name.endswith(".npz"):
        path = Path(name).expanduser()
        return read_npz(name, path if path.exists() else data_dir / path)
    if name not in names():
        raise SettingError("dataset", name, f"{', '.join(names())}, or the path of an .npz file")
    module = importlib.import_module(f"{__name__}.{name}")
    augment = getattr(module, "AUGMENT", False)
    laid_out = data_dir / f"{name}.npz"
    if laid_out.exists():
        return read_npz(name, laid_out, augment)
    try:
        arrays = module.read(data_dir, download)
    except UNREADABLE as error:
        allowed = f"a folder with {name}.npz or the files of {name}, or download=true and a network"
        raise SettingError("data_dir", str(data_dir), f"{allowed} ({one_line(error)})") from error
    return from_arrays(name, arrays, name, augment)
