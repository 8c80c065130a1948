"""What marks the lines of predictions: names, ids, and that a person is to decide."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from fedbary.data.examples import Examples
from fedbary.trained.files import safe

PERSON = "to a person"
"""The column that says which cases are left to a person."""


def names_of(examples: Examples, id: str) -> dict[str, np.ndarray]:
    """Return the columns that say which example is which: its name, and that of the run's ids."""
    names = {"example": safe(examples.names)}
    if id in examples.columns:
        names[id] = safe(examples.columns[id])
    return names


def referred(
    columns: Mapping[str, np.ndarray], names: Collection[str], unknown: Collection[int]
) -> dict[str, np.ndarray]:
    """Return columns of which the examples in some places go to a person, and say nothing else.

    Parameters
    ----------
    columns : mapping of str to ndarray
        Names and predictions, (N,) each.
    names : collection of str
        The columns that say which example is which; they stay.
    unknown : collection of int
        The places.
    """
    count = len(columns["example"])
    here = np.isin(np.arange(count), list(unknown))
    held = {
        name: values
        if name in names
        else np.where(here, "" if values.dtype == object else np.nan, values)
        for name, values in columns.items()
        if name != PERSON
    }
    return {**held, PERSON: here | columns.get(PERSON, np.zeros(count, dtype=bool))}
