"""The environment of the programs that are started: a Flower and a Ray of their own."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO

from fedbary.errors import SettingError
from fedbary.launching.app import app_folder
from fedbary.launching.programs import free_port
from fedbary.runs.commit import CLONE_VARIABLE
from fedbary.runs.progress import PROGRESS_VARIABLE

RAY_BYTES = 16 * 2**20
"""Room that Ray needs for its files before the first round: logs, sockets' folders, records."""

LOOPBACK = ("127.0.0.1", "localhost")

RAY_FOLDER_BYTES = 35
"""The longest path below which Ray's sockets fit into the 107 bytes that Unix gives a socket."""


def flower_environment(home: Path) -> dict[str, str]:
    """Return an environment where Flower has its own home, port and Ray, and installs nothing.

    Without an address Ray joins the last cluster started on the machine, even a dead one. The user
    can name a cluster by `RAY_ADDRESS`.
    """
    tools = str(Path(sys.executable).parent)
    return {
        **os.environ,
        **past_proxies(),
        CLONE_VARIABLE: str(app_folder()),
        "PATH": os.pathsep.join([tools, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_ADDRESS": os.environ.get("RAY_ADDRESS") or "local",
    }


def past_proxies() -> dict[str, str]:
    """Return the variables that keep the user's proxies out of connections on this machine.

    gRPC reads `no_grpc_proxy` before `no_proxy`; some libraries read the one in capitals.
    """
    names = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
    kept = [host for name in names for host in os.environ.get(name, "").split(",") if host.strip()]
    return dict.fromkeys(names, ",".join(dict.fromkeys([*kept, *LOOPBACK])))


def ray_folder() -> dict[str, str]:
    """Return the variable that names Ray's folder: the user's, or ``/tmp`` if its path is too long.

    Raises
    ------
    SettingError
        If `RAY_TMPDIR` is too long, or `TMPDIR` is and nothing can be written to ``/tmp``; or if
        the folder's disk is full.
    """
    name, folder = _ray_folder()
    place = Path(folder).absolute()
    disk = next(path for path in (place, *place.parents) if path.exists())
    if (free := shutil.disk_usage(disk).free) < RAY_BYTES:
        held = f"{folder}, a folder with {free / 2**20:,.1f} MiB free"
        raise SettingError(name, held, f"{RAY_BYTES / 2**20:,.0f} MiB for Ray's files")
    return {"RAY_TMPDIR": folder}


def _ray_folder() -> tuple[str, str]:
    """Return Ray's folder, and before it the variable by which a user names it."""
    allowed = f"a path of at most {RAY_FOLDER_BYTES} bytes, for Ray's sockets"
    if given := os.environ.get("RAY_TMPDIR"):
        if _is_long(given):
            raise SettingError("RAY_TMPDIR", given, allowed)
        return "RAY_TMPDIR", given
    folder = tempfile.gettempdir()
    if not _is_long(folder):
        return "TMPDIR", folder
    if not os.access("/tmp", os.W_OK | os.X_OK):
        raise SettingError("TMPDIR", folder, f"{allowed}; or name such a folder as RAY_TMPDIR")
    return "RAY_TMPDIR", "/tmp"


def progress_in(folder: Path, log: IO[str] | None) -> dict[str, str]:
    """Return the variables that let a run in a terminal show its progress; none elsewhere."""
    if log is not None or not sys.stdout.isatty():
        return {}
    return {PROGRESS_VARIABLE: str(folder / "progress.json"), "PYTHONUNBUFFERED": "1"}


def _is_long(folder: str) -> bool:
    return len(os.fsencode(folder)) > RAY_FOLDER_BYTES
