"""Hugging Face data sets: from the hub by name, or a local copy in a folder or a Parquet file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from fedbary.data.cards import require_local
from fedbary.data.forms import HUB, PARQUET
from fedbary.data.paths import user_path
from fedbary.errors import SettingError
from fedbary.parts.imports import library

TESTS = ("test", "validation", "valid", "val")
"""What the part that tests is called: the first of these that is there and has labels."""

_SAVED = ("dataset_dict.json", "state.json")
"""Files of which one lies in a folder that `save_to_disk` made."""


def load_hub(name: str, data_dir: Path, download: bool, target: str = "") -> tuple[Any, Any | None]:
    """Return the training part and the test part, if there is one, as `datasets.Dataset`.

    Parameters
    ----------
    name : str
        ``hf:PATH``, a folder as ``save_to_disk`` makes it, or with Parquet files or folders of
        images: absolute, relative to the working directory, or else to ``data_dir``. A Parquet
        file likewise, with or without ``hf:``. Or ``hf:owner/name``, or
        ``hf:owner/name:configuration``, on the hub.
    data_dir : Path
        In its folder ``huggingface`` lies what is fetched or converted.
    download : bool
        Whether the hub may be asked.
    target : str
        The column of the labels; columns of named classes hold some in any case. A part whose
        labels are all hidden (−1) does not test.

    Raises
    ------
    SettingError
        The library is not installed, there is no such data set, or the hub cannot be reached.
    """
    held = name.removeprefix(HUB)
    here = next((p for p in (user_path(held), data_dir / held) if p.exists()), None)
    if here is None and (held.lower().endswith(PARQUET) or not download):
        allowed = "a folder or a Parquet file that is there, or download=true for a name on the hub"
        raise SettingError("dataset", name, allowed)
    datasets = library("datasets", "hf", "dataset", name)
    cache = str(data_dir / "huggingface")
    if here:
        datasets.disable_progress_bars()
    try:
        if here is not None and any((here / file).is_file() for file in _SAVED):
            found = datasets.load_from_disk(str(here))
        elif here is not None and here.is_file():
            found = datasets.load_dataset("parquet", data_files=str(here), cache_dir=cache)
        else:
            if here is not None:
                require_local(here)
            place, _, configuration = (str(here), "", "") if here else held.partition(":")
            found = datasets.load_dataset(place, configuration or None, cache_dir=cache)
    except Exception as error:  # noqa: BLE001 - files and networks raise many kinds
        allowed = f"a data set that can be read: {HUB}PATH, or {HUB}owner/name"
        raise SettingError(f"dataset {name}", error, allowed) from error
    if not isinstance(found, datasets.DatasetDict):
        return found, None
    train = found.get("train", next(iter(found.values())) if len(found) == 1 else None)
    if train is None:
        allowed = "a part called train, or one part alone"
        raise SettingError(f"dataset {name}: parts", ", ".join(found), allowed)
    parts = [test for test in TESTS if test in found]
    tests = [test for test in parts if not _is_hidden(found[test], target)]
    if hidden := [test for test in parts if test not in tests]:
        instead = f"{tests[0]} tests" if tests else "a part of train tests"
        warnings.warn(f"dataset {name}: {hidden[0]} has no labels, {instead}", stacklevel=2)
    return train, found[tests[0]] if tests else None


def _is_hidden(part: Any, target: str) -> bool:
    """Whether a column of labels says nothing in all rows."""
    columns = [column for column, kind in part.features.items() if hasattr(kind, "int2str")]
    if str(getattr(part.features.get(target), "dtype", "")).startswith(("int", "string")):
        columns.append(target)
    return any({-1, None}.issuperset(part.unique(column)) for column in columns)
