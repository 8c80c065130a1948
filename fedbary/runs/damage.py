"""Folders of runs that are damaged, or that a stranger wrote: any error is one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbary.errors import RunError, SettingError
from fedbary.parts.imports import said


@contextmanager
def as_written(folder: Path) -> Iterator[None]:
    """Read a run's folder; whatever else than a SettingError that raises is said to be damage.

    Raises
    ------
    SettingError
        The error's kind and text, and that of the folder was expected what a run wrote.
    """
    try:
        yield
    except (SettingError, RunError):
        raise
    except Exception as error:  # noqa: BLE001 - files of strangers raise many kinds
        allowed = f"what a run wrote ({said(error)})"
        raise SettingError("run", str(folder), allowed) from error
