"""A cache of data, valid while their files do not change; a run sees one state of them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

from fedbary.data.forms import DataSource

ReadOnce = TypeVar("ReadOnce")

_looks: ContextVar[dict[Hashable, Hashable] | None] = ContextVar("looks", default=None)


@contextmanager
def one_state(run: int | None = None) -> Iterator[None]:
    """Look at each file once inside this context; later changes are not read.

    With the number of a run, look once in all contexts of that run; inside another context, that
    context's looks are used.
    """
    outer = _looks.get()
    seen = {} if run is None else _of_run(run) if outer is None else outer
    token = _looks.set(seen)
    try:
        yield
    finally:
        _looks.reset(token)


@lru_cache(maxsize=1)
def _of_run(run: int) -> dict[Hashable, Hashable]:
    """Return what the last run in this process has looked at."""
    return {}


def state_of(path: Path) -> Hashable:
    """Return the state of a file or folder: sizes and times of change.

    Outside `one_state` the path is looked at anew.
    """
    return _once(path.absolute(), lambda: _look(path))


def source_state(source: DataSource, data_dir: Path) -> Hashable:
    """Return the state of a source's data; a user's own function has a new one each time."""
    if source.is_code:
        return _once(source, object)
    return state_of(source.path(data_dir)) if source.text else None


class Kept(Generic[ReadOnce]):
    """Values by key, each with the state of its files; a value of another state is read anew.

    Parameters
    ----------
    most : int
        Largest number of values; the one that is longest unused is dropped.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._held: dict[Hashable, tuple[Hashable, ReadOnce]] = {}

    def get(self, key: Hashable, state: Hashable, read: Callable[[], ReadOnce]) -> ReadOnce:
        """Return the value of a key, read if there is none of this state."""
        found = self._held.pop(key, None)
        if found is None or found[0] != state:
            found = state, read()
        self._held[key] = found
        if len(self._held) > self._most:
            del self._held[next(iter(self._held))]
        return found[1]


def _once(key: Hashable, look: Callable[[], Hashable]) -> Hashable:
    """Return what a look finds; inside `one_state` it is that of the first look for the key."""
    seen = _looks.get()
    if seen is None:
        return look()
    if key not in seen:
        seen[key] = look()
    return seen[key]


def _look(path: Path) -> Hashable:
    """Return a path with size and time of change of a file, or a hash of those in a folder."""
    try:
        found = path.stat()
    except OSError:
        return path.absolute(), None
    if not stat.S_ISDIR(found.st_mode):
        return path.absolute(), found.st_ino, found.st_size, found.st_mtime_ns
    of_files = hashlib.blake2b(digest_size=16)
    for place, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            file = os.path.join(place, name)
            held = os.stat(file) if os.path.exists(file) else None
            told = (held.st_size, held.st_mtime_ns) if held else None
            of_files.update(repr((file, told)).encode())
    return path.absolute(), of_files.hexdigest()
