"""The folder of a run, and whether a run may begin or resume there; without PyTorch."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbary.data.forms import content_of, require_regular, user_path
from fedbary.errors import RunError, SettingError, naming
from fedbary.parts.imports import said
from fedbary.runs.schema import ROUND
from fedbary.settings.config import Settings, bookkeeping, read_yaml

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


CLIENTS = "clients"
"""The folder with what clients keep between rounds, a folder each, in a run's folder."""

POSTERIOR = "posterior.safetensors"
METRICS = "metrics.jsonl"
SETTINGS = "settings.yaml"
SIGNATURE = "signature.json"
UNUSED = "unused"
"""The entry of settings.yaml with settings of the deal, in a run on the sites' own data."""
RECORD = "record.jsonl"
SITE_KEYS = "site-keys.json"
KEYS = "keys"
"""The folder of the private keys of `fedbary deploy`'s sites."""

DEFENCES = ("clipping", "mixing", "trim_fraction", "max_precision_ratio", "max_weight_ratio")
"""Settings that may change when a run goes on: how the server protects its aggregate."""

BEFORE_SETTINGS = {LOCK, CLIENTS, SITE_KEYS, f"{SITE_KEYS}.partial", f"{SETTINGS}.partial"}
"""Names that a run writes before its settings: a folder with no others holds no run.

`fedbary deploy` writes what its sites have released in the run that this one starts from.
"""


def run_folder(settings: Settings, base: Path) -> Path:
    """Return the run's folder, absolute: `output`, or for auto a new name under base/runs."""
    if settings.output == "auto" and settings.resume != "none":
        raise SettingError("output", "auto", f"the run's folder, with resume={settings.resume}")
    if settings.output != "auto":
        return (base / user_path(settings.output)).resolve()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    data = settings.source.stem
    name = f"{stamp}-{data}-{settings.strategy}-n{settings.bayesian_layers}-seed{settings.seed}"
    folder = (base / "runs" / name).resolve()
    numbered = (folder.with_name(f"{name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([folder], numbered) if not path.exists())


@contextmanager
def claimed_folder(settings: Settings, base: Path) -> Iterator[Path]:
    """Return the run's folder; a new one is made at once, so that no other run takes its name.

    An empty one is removed at the end, with the folders made for it.

    Raises
    ------
    SettingError
        If it cannot be made.
    """
    folder = run_folder(settings, base)
    if settings.output != "auto":
        yield folder
        return
    above = [place for place in folder.parents if not place.exists()]
    while True:
        try:
            folder.mkdir(parents=True)
            (folder / LOCK).touch()
            break
        except FileExistsError:
            folder = run_folder(settings, base)
        except OSError as error:
            raise SettingError(f"output {folder}", error, "a folder that can be written") from None
    try:
        yield folder
    finally:
        if {path.name for path in folder.glob("*")} <= {LOCK}:
            (folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):
                for place in (folder, *above):
                    place.rmdir()


def is_whole(folder: Path) -> bool:
    """Return whether the folder holds a run that ended."""
    return (folder / POSTERIOR).exists()


def is_left_whole(folder: Path) -> bool:
    """Return whether the folder holds a run that ended, and no process writes to it."""
    return is_whole(folder) and not (folder / LOCK).exists()


def is_deployed(folder: Path) -> bool:
    """Return whether the folder holds a run of real servers, which no simulation can resume."""
    file = folder / SETTINGS
    sites = read_yaml(file).get("sites", []) if file.exists() else []
    if not isinstance(sites, list):
        raise SettingError(f"{file}: sites", sites, "a list of names")
    dealt = all(re.fullmatch(r"partition \d+", str(name)) for name in sites)
    return not dealt or (folder / SITE_KEYS).exists()


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the run in a folder, the unused ones too.

    Raises
    ------
    SettingError
        If the folder holds no run.
    """
    file = folder / SETTINGS
    content = read_yaml(file) if file.exists() else {}
    made, unused = content.get("settings"), content.get(UNUSED, {})
    if not isinstance(made, dict) or not isinstance(unused, dict):
        raise SettingError("run", str(folder), f"the folder of a run, with its {SETTINGS}")
    return {**unused, **made}


def require_startable(folder: Path, settings: Settings) -> None:
    """Raise an error if a run may not begin, or go on, in a folder.

    Raises
    ------
    SettingError
        The folder cannot be written. A new run: the folder holds files. A resumed run: the folder
        holds no run, a whole one, or one of other settings, `DEFENCES` apart. A whole run of real
        servers may go on to more rounds.
    """
    try:
        held = {path.name for path in folder.iterdir()} if folder.exists() else set()
        is_new = held <= BEFORE_SETTINGS
        if settings.resume == "none" and not is_new:
            allowed = "a folder that does not exist yet, or an empty one"
            raise SettingError("output", str(folder), allowed)
        place = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise SettingError(f"output {folder}", error, "a folder that can be written") from None
    if settings.resume == "none":
        return
    if settings.resume == "last" and is_new:
        return
    made, longer = read_settings(folder), is_whole(folder)
    if longer and not (is_deployed(folder) and settings.rounds > made["rounds"]):
        more = f"rounds= above its {made['rounds']} goes on"
        if not is_deployed(folder):
            more = f"fedbary resume {folder} {more}"
        raise SettingError("output", str(folder), f"an interrupted run; this one has ended: {more}")
    for key, (old, new) in changed_settings(folder, settings).items():
        if key not in DEFENCES and not (longer and key == "rounds"):
            allowed = f"{old!r}, with which the run in {folder} was started"
            raise SettingError(key, new, allowed)


def changed_settings(folder: Path, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ from those of a folder's run, with the old and the new value.

    Settings on the place and manner of a run do not count.
    """
    made, now = read_settings(folder), settings.model_dump()
    pairs = {key: (made.get(key), new) for key, new in now.items() if key not in bookkeeping()}
    return {key: (old, new) for key, (old, new) in pairs.items() if old != new}


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


def metrics_lines(folder: Path) -> list[bytes]:
    """Return the lines, the last of which may be cut off; none without a file."""
    try:
        return content_of(folder / METRICS).splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SettingError(str(folder / METRICS), error, "the file as the run wrote it") from None


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl."""
    try:
        rounds = [json.loads(line) for line in metrics_lines(folder)]
        if not all(
            isinstance(line, dict) and line.get(ROUND) == k for k, line in enumerate(rounds)
        ):
            raise ValueError("its lines are not those of the rounds 0, 1, …")
    except (ValueError, RecursionError) as error:
        raise SettingError(str(folder / METRICS), error, "the file as the run wrote it") from None
    return rounds
