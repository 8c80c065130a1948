"""The record of a run for an auditor, at the server and at a site: a line an event, appended.

The server's is `record.jsonl` in the run's folder. A site's is `record/<run id>.jsonl` in its
folder of state. Flower's run id and the ids of messages join both. Neither holds anything of the
data.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedbary.data.forms import content_of
from fedbary.errors import SettingError
from fedbary.runs.commit import app_digest
from fedbary.runs.location import RECORD
from fedbary.runs.provenance import versions

SITE_RECORDS = "record"
"""The folder of a site's records, in its folder of state."""


def entry(event: str, run: int, **words: Any) -> dict[str, Any]:
    """Return an event of a run of Flower with its time, in UTC."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    return {"event": event, "time": stamp, "run": str(run), **words}


def who() -> dict[str, Any]:
    """Return user, host, process, versions and code of this process, as it knows them."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = str(os.getuid())
    here = {"user": user, "host": socket.gethostname(), "process": os.getpid()}
    return {**here, "platform": platform.platform(), "code": app_digest(), "versions": versions()}


def append(file: Path, entries: Iterable[Mapping[str, Any]], private: bool = False) -> None:
    """Append lines at once; a line that a kill has cut off stays, on its own.

    Parameters
    ----------
    file
        The record; it is made if there is none.
    entries
        The lines.
    private
        True: a new file is its owner's alone.
    """
    text = b"".join(json.dumps({**each}).encode() + b"\n" for each in entries)
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600 if private else 0o666)
    with open(descriptor, "r+b", buffering=0) as stream:
        end = stream.seek(0, os.SEEK_END)
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            text = b"\n" + text
        stream.write(text)


def read_record(file: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the events of a record, and how many of its lines cannot be read.

    Raises
    ------
    SettingError
        If the file cannot be read.
    """
    found, damaged = [], 0
    try:
        lines = content_of(file).splitlines()
    except OSError as error:
        raise SettingError("record", error, f"a {RECORD}, or a site's record") from None
    for line in lines:
        try:
            read = json.loads(line)
            sound = isinstance(read, dict) and {"event", "time", "run"} <= read.keys()
        except (ValueError, RecursionError):
            sound = False
        if sound:
            found.append(read)
        damaged += not sound
    return found, damaged
