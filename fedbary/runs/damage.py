"""Folders of runs that are damaged, or that a stranger wrote: any error is one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbary.errors import RunError, SettingError
from fedbary.parts.imports import said


@contextmanager
def as_written(folder: Path) -> Iterator[None]:
    """Read a run's folder; report any error but a SettingError as damage.

    Raises
    ------
    SettingError
        The error's kind and text, and the expected content: a folder as a run writes it.
    """
    try:
        yield
    except (SettingError, RunError):
        raise
    except Exception as error:  # noqa: BLE001 - files of strangers raise many kinds
        allowed = f"a folder as a run writes it ({said(error)})"
        raise SettingError("run", str(folder), allowed) from error
