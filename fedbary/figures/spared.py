"""A picture that fails stops nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedbary.errors import one_line


@contextmanager
def spared(what: str, say: Callable[[str], None] = warnings.warn) -> Iterator[None]:
    """Turn a failure within the block into one line, "`what`: not drawn, …", for `say`."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - fonts, names and numbers fail in many ways
        say(f"{what}: not drawn, {type(error).__name__}: {one_line(error)}")
