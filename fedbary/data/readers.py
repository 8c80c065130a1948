"""Reading a source: the arguments of the file that reads it, and the images that it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedbary.data.forms import FUNCTION, PATH, DataSource, libraries
from fedbary.data.image_files import Shape
from fedbary.data.split import tenth_of_each_class
from fedbary.seeds import derive_seed

LabelledImages = tuple[np.ndarray, np.ndarray]
"""Images (N, H, W) or (N, H, W, 3) and their labels (N,)."""

TESTS = ("test", "testing", "validation", "valid", "val")
"""Names of the test part; the first that exists and has labels is taken."""

NOTES = "what was read"
"""Optional entry beside the arrays: lines that say what was read."""


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
    """

    data_dir: Path
    download: bool = False
    target: str = ""
    shape: Shape | None = None
    resize: str = "none"


Reader = Callable[[DataSource, Reading], Any]


def reader(source: DataSource, data_dir: Path, *functions: str) -> Reader | None:
    """Return the first of some functions that the file that reads a source has; None for none."""
    module = f"formats.{source.kind}"
    if source.kind in libraries():
        module = f"sources.{source.kind}"
    elif source.kind in (PATH, FUNCTION):
        is_folder = bool(source.text) and source.path(data_dir).is_dir()
        if not (is_folder or source.is_code):
            return None
        module = "formats._folder" if is_folder else "sources._function"
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
    x, y = train
    return {"x_train": x, "y_train": y, "x_test": test[0], "y_test": test[1], "classes": classes}


def parted(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Return the four arrays of examples; a fixed tenth of each class is the test part."""
    tested = tenth_of_each_class(y, np.random.default_rng(derive_seed(0, "split")))
    return {"x_train": x[~tested], "y_train": y[~tested], "x_test": x[tested], "y_test": y[tested]}
