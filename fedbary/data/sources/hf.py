"""Hugging Face data sets: from the hub by name, or a local copy in a folder or a Parquet file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import numpy as np
import yaml

from fedbary.data.forms import DataSource
from fedbary.data.frame import Frame, frame_of
from fedbary.data.image_folder import arrays_of_columns, own_columns
from fedbary.data.readers import TESTS, LabelledImages, Reading, saved_sets
from fedbary.errors import CellError, SettingError
from fedbary.parts.imports import library
from fedbary.texts import listed

if TYPE_CHECKING:
    from pandas import DataFrame


CARD, SETTINGS = "README.md", ".huggingface.yaml"
"""The files that name places of data; `datasets` fetches from there, wherever that is."""

_PLACES = ("data_files", "data_dir")


def require_paths_inside(folder: Path) -> None:
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


FORM = "hf:owner/name"


def table(source: DataSource, reading: Reading) -> Frame:
    """Return columns and targets; a SettingError as in `load_hub` and `frame_of`.

    The test part prescribes a split. Classes that have names keep their order.
    """
    import pandas

    train, test = load_hub(source, reading)
    parts = [_named(source.text, part) for part in (train, test) if part is not None]
    rows = np.arange(sum(map(len, parts)))
    splits = [(rows[: len(train)], rows[len(train) :])] if test is not None else []
    target = reading.target
    classes = getattr(train.features.get(target), "names", None) or ()
    return frame_of(source.text, pandas.concat(parts, ignore_index=True), target, splits, classes)


def image_columns(source: DataSource, reading: Reading) -> dict[str, Any]:
    """Return the four arrays and the classes' names; a SettingError as in `load_hub`."""
    return arrays_of_columns(source.text, load_hub(source, reading), reading)


def own_images(source: DataSource, reading: Reading, classes: Sequence[str]) -> LabelledImages:
    """Return a site's own images and labels, by the names of a federation's classes.

    They are the training part; the SettingErrors of `load_hub` and `own_columns` hold none of them
    in what is allowed.
    """
    return own_columns(source.text, load_hub(source, reading)[0], reading, classes)


def local(source: DataSource, data_dir: Path) -> Path | None:
    """Return the folder or file here that a source names; None for a name on the hub."""
    path = source.path(data_dir)
    return path if path.exists() else None


def load_hub(source: DataSource, reading: Reading) -> tuple[Any, Any | None]:
    """Return the training part and the test part, if there is one, as `datasets.Dataset`.

    Parameters
    ----------
    source : DataSource
        ``hf:PATH``, a folder as ``save_to_disk`` makes it, or with Parquet files or folders of
        images: absolute, relative to the working directory, or else to the reading's folder. A
        saved folder and a Parquet file likewise, with or without ``hf:``. Or ``hf:owner/name``, or
        ``hf:owner/name:configuration``, on the hub.
    reading : Reading
        Its folder ``huggingface`` keeps what is fetched or converted. Its target names the column
        of the labels; columns of named classes hold labels in any case. A part whose labels are all
        hidden (−1) does not test.

    Raises
    ------
    SettingError
        The library is not installed, there is no such data set, or the hub cannot be reached.
    """
    name, here = source.text, local(source, reading.data_dir)
    if here is None and (name.lower().endswith(".parquet") or not reading.download):
        allowed = "a folder or a Parquet file that is there, or download=true for a name on the hub"
        raise SettingError("dataset", name, allowed)
    saved = saved_sets(here) if here else []
    if here and saved not in ([], [here]):
        told = f"a folder of {len(saved)} data sets, such as {saved[0].name}"
        allowed = "the path of one of them; fedbary deploy --site PATH gives each to a site"
        raise SettingError(f"dataset {name}", told, allowed)
    datasets = library("datasets", "hf", "dataset", name)
    cache = str(reading.data_dir / "huggingface")
    if here:
        datasets.disable_progress_bars()
    try:
        if saved:
            found = datasets.load_from_disk(str(here))
        elif here is not None and here.is_file():
            found = datasets.load_dataset("parquet", data_files=str(here), cache_dir=cache)
        else:
            if here is not None:
                require_paths_inside(here)
            names = (str(here), None) if here else (source.place, source.part or None)
            found = datasets.load_dataset(*names, cache_dir=cache)
    except Exception as error:  # noqa: BLE001 - files and networks raise many kinds
        allowed = f"a data set that can be read: hf:PATH, or {FORM}"
        raise SettingError(f"dataset {name}", error, allowed) from error
    if not isinstance(found, datasets.DatasetDict):
        return found, None
    train = found.get("train", next(iter(found.values())) if len(found) == 1 else None)
    if train is None:
        allowed = "a part called train, or one part alone"
        raise SettingError(f"dataset {name}: parts", ", ".join(found), allowed)
    parts = [test for test in TESTS if test in found]
    tests = [test for test in parts if not _is_hidden(found[test], reading.target)]
    if hidden := [test for test in parts if test not in tests]:
        instead = f"{tests[0]} is the test part" if tests else "a part of train is the test part"
        warnings.warn(f"dataset {name}: {hidden[0]} has no labels, {instead}", stacklevel=2)
    return train, found[tests[0]] if tests else None


def _is_hidden(part: Any, target: str) -> bool:
    """Return whether all labels of a column are hidden."""
    columns = [column for column, kind in part.features.items() if hasattr(kind, "int2str")]
    if str(getattr(part.features.get(target), "dtype", "")).startswith(("int", "string")):
        columns.append(target)
    return any({-1, None}.issuperset(part.unique(column)) for column in columns)


def _named(source: str, part: Any) -> DataFrame:
    """Return the rows of a part, its classes by their names; a CellError for other numbers."""
    held = part.to_pandas()
    for column, feature in part.features.items():
        if hasattr(feature, "int2str"):
            beyond = (held[column] >= len(feature.names)).to_numpy()
            if beyond.any():
                row = int(beyond.argmax())
                allowed = f"0 to {len(feature.names) - 1}: {listed(feature.names)}"
                raise CellError(
                    f"{source}: row {row + 1}, {column}", int(held[column][row]), allowed
                )
            held[column] = [feature.int2str(int(k)) if k >= 0 else None for k in held[column]]
    return held
