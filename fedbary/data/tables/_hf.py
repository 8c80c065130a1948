"""A table of Hugging Face; one of its columns is the target, its test part prescribes a split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbary.data.frame import Frame
from fedbary.data.hub import load_hub
from fedbary.data.tables._dataframe import frame_of

if TYPE_CHECKING:
    from pandas import DataFrame


def read(name: str, data_dir: Path, download: bool, target: str) -> Frame:
    """Return columns and targets; a SettingError as of `load_hub` and `frame_of`.

    Classes that have names keep their order.
    """
    import pandas

    train, test = load_hub(name, data_dir, download, target)
    parts = [_named(part) for part in (train, test) if part is not None]
    rows = np.arange(sum(map(len, parts)))
    splits = [(rows[: len(train)], rows[len(train) :])] if test is not None else []
    classes = getattr(train.features.get(target), "names", None) or ()
    return frame_of(name, pandas.concat(parts, ignore_index=True), target, splits, classes)


def _named(part: Any) -> DataFrame:
    """Return the rows of a part, its classes by their names."""
    held = part.to_pandas()
    for column, feature in part.features.items():
        if hasattr(feature, "int2str"):
            held[column] = [None if k < 0 else feature.int2str(int(k)) for k in held[column]]
    return held
