"""One writer a run's folder: a lock that the kernel releases when its process ends."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedbary.data.paths import require_regular
from fedbary.errors import RunError, naming

if TYPE_CHECKING:
    from filelock import FileLock

LOCK = ".lock"
"""The locked file; it says who holds it."""

WAIT_SECONDS = 0.5
"""Seconds to try: `require_free` holds the lock for a moment too."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Be the only process that writes to a folder, which is made if needed.

    A folder that was made here, and in which nothing was written, is removed at the end.

    Raises
    ------
    RunError
        If another process is writing to it, or there is no room: one line.
    """
    try:
        is_new = not folder.exists()
        with locked(folder):
            try:
                yield
            finally:
                (folder / LOCK).unlink(missing_ok=True)
                if is_new and folder.exists() and not any(folder.iterdir()):
                    folder.rmdir()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        go_on = "once there is room, resume goes on from the last whole round"
        raise RunError(f"{folder} cannot be written: {error.strerror}; {go_on}") from error


@contextmanager
def locked(
    folder: Path, written: Path | None = None, seconds: float = WAIT_SECONDS
) -> Iterator[None]:
    """Hold the lock of a folder, which is made if needed; wait for some seconds.

    Raises
    ------
    RunError
        If another process holds it: it writes to the folder, or to `written`.
    """
    lock = None
    while lock is None:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # its last holder has removed the folder
            lock = _taken(folder, written or folder, seconds)
    try:
        with naming(folder / LOCK):
            holder = f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            (folder / LOCK).write_text(holder, encoding="utf-8")
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()


def require_free(folder: Path) -> None:
    """Raise a RunError that names the process writing to a folder, if there is one."""
    with suppress(FileNotFoundError, PermissionError):  # who may not write to it may read it
        if (folder / LOCK).exists():
            lock = _taken(folder, folder, WAIT_SECONDS)
            (folder / LOCK).unlink(missing_ok=True)
            lock.release()


def _taken(folder: Path, written: Path, seconds: float) -> FileLock:
    from filelock import FileLock, Timeout

    require_regular(folder / LOCK)
    lock = FileLock(folder / LOCK, timeout=seconds)
    try:
        lock.acquire()
    except Timeout:
        holder = "another process"
        with suppress(FileNotFoundError):
            holder = (folder / LOCK).read_text(encoding="utf-8", errors="replace") or holder
        raise RunError(f"{written} is being written by {holder}") from None
    return lock
