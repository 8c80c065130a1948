"""Hugging Face data sets: from the hub by name, or a local copy in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedbary.data.forms import HUB
from fedbary.errors import SettingError
from fedbary.imports import library

TESTS = ("test", "validation", "valid", "val")
"""What the part that tests is called: the first of these that is there."""

_SAVED = ("dataset_dict.json", "state.json")
"""Files of which one lies in a folder that `save_to_disk` made."""


def load_hub(name: str, data_dir: Path, download: bool) -> tuple[Any, Any | None]:
    """Return the training part and the test part, if there is one, as `datasets.Dataset`.

    Parameters
    ----------
    name : str
        ``hf:PATH``, a folder as ``save_to_disk`` makes it, or with Parquet files or folders of
        images: absolute, relative to the working directory, or else to ``data_dir``. Or
        ``hf:owner/name``, or ``hf:owner/name:configuration``, on the hub.
    data_dir : Path
        In its folder ``huggingface`` lies what is fetched or converted.
    download : bool
        Whether the hub may be asked.

    Raises
    ------
    SettingError
        The library is not installed, there is no such data set, or the hub cannot be reached.
    """
    held = name.removeprefix(HUB)
    folder = next((f for f in (Path(held).expanduser(), data_dir / held) if f.is_dir()), None)
    if folder is None and not download:
        allowed = "a folder that is there, or download=true for a name on the hub"
        raise SettingError("dataset", name, allowed)
    datasets = library("datasets", "hf", "dataset", name)
    if folder:
        datasets.disable_progress_bars()
    try:
        if folder is not None and any((folder / file).is_file() for file in _SAVED):
            found = datasets.load_from_disk(str(folder))
        else:
            place, _, configuration = (str(folder), "", "") if folder else held.partition(":")
            cache = str(data_dir / "huggingface")
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
    return train, next((found[test] for test in TESTS if test in found), None)
