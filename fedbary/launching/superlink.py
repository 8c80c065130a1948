"""Flower's commands on a SuperLink."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

from fedbary.errors import RunError
from fedbary.launching.app import app_folder
from fedbary.launching.programs import tool

SUPERLINK_SECONDS = 180
"""How long a machine with much else to do may take to start one."""


def wait_for_superlink(
    process: subprocess.Popen[bytes], address: str, log: Path, ca: Path | None = None
) -> None:
    """Wait until a SuperLink answers, by HTTPS if its certificate's authority is given.

    Raises
    ------
    RunError
        If it ends, or does not answer in time; the message is the last error of its log, its last
        line, or how long it had.
    """
    handlers = [HTTPSHandler(context=ssl.create_default_context(cafile=ca))] if ca else []
    opener = build_opener(ProxyHandler({}), *handlers)
    url = f"{'https' if ca else 'http'}://{address}/health"
    deadline = time.monotonic() + SUPERLINK_SECONDS
    while not _is_healthy(opener, url):
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            said = [line for line in lines if "ERROR" in line] or lines
            late = f"no answer within {SUPERLINK_SECONDS} s; is the machine busy?"
            raise RunError(f"Flower's SuperLink did not start: {said[-1] if said else late}")
        time.sleep(0.1)


def _is_healthy(opener: OpenerDirector, url: str) -> bool:
    try:
        with opener.open(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def last_status(environment: dict[str, str], name: str) -> str:
    """Return the newest run's status on the SuperLink of that name."""
    command = [tool("flwr"), "list", name, "--format", "json"]
    done = subprocess.run(
        command, cwd=app_folder(), env=environment, capture_output=True, check=False
    )
    try:
        return str(json.loads(done.stdout)["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"


def to_toml(values: Mapping[str, str | int | float | bool]) -> str:
    """Return flat settings as TOML; JSON writes all but the delete character the same way."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()]
    return "".join(lines).replace("\x7f", "\\u007f")
