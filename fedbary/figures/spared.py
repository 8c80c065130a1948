"""Pictures never cost what stands beside them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedbary.errors import one_line


@contextmanager
def spared(what: str, say: Callable[[str], None] = warnings.warn) -> Iterator[None]:
    """Make a failure within the block one line, "`what`: not drawn, …", that `say` is given."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - fonts, names and numbers fail in many ways
        say(f"{what}: not drawn, {type(error).__name__}: {one_line(error)}")
