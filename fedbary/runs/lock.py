"""One writer a run's folder: a lock that the kernel releases when its process ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fedbary.data.paths import require_regular
from fedbary.errors import RunError, naming

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
def locked(folder: Path, written: Path | None = None) -> Iterator[None]:
    """Hold the lock of a folder, which is made if needed.

    Raises
    ------
    RunError
        If another process holds it: it writes to the folder, or to `written`.
    """
    with _locked(folder, written or folder) as file:
        try:
            with naming(folder / LOCK):
                file.truncate(0)
                file.write(f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}")
                file.flush()
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)


def require_free(folder: Path) -> None:
    """Raise a RunError that names the process writing to a folder, if there is one."""
    require_regular(folder / LOCK)
    with suppress(FileNotFoundError), open(folder / LOCK, "rb") as file:
        if not _take(file, fcntl.LOCK_SH):
            raise _taken(folder, folder)


def _locked(folder: Path, written: Path) -> IO[str]:
    """Open and lock a folder's lock; repeat if its holder has removed one of them meanwhile."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        require_regular(folder / LOCK)
        with suppress(FileNotFoundError):
            file = open(folder / LOCK, "a", encoding="utf-8")  # noqa: SIM115 - the caller closes it
            if _take(file, fcntl.LOCK_EX) and _is_at(file, folder / LOCK):
                return file
            file.close()
        if time.monotonic() > deadline:
            raise _taken(folder, written)
        time.sleep(0.05)


def _take(file: IO[str] | IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _taken(folder: Path, written: Path) -> RunError:
    try:
        holder = (folder / LOCK).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        holder = ""
    return RunError(f"{written} is being written by {holder or 'another process'}")
