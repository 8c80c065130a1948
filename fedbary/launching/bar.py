"""Bars in a terminal: of a sweep's runs, and of the clients of a run's round."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from fedbary.runs.duration import duration
from fedbary.runs.progress import Progress as Round

POLL_SECONDS = 0.2
ALL_SECONDS = 1e9
"""The bar's speed is that since its start."""

LAST_SECONDS = 5.0
"""Seconds to wait for the last lines of a program that has ended."""

OF_FLOWER = (
    "Flower configuration not found",
    "Using SuperLink:",
    "Successfully started run",
    "Starting logstream",
    "Starting Flower Simulation",
    "default simulated SuperNodes changed",
    "simulated SuperNodes)",
    "To change federation size",
    "flwr federation simulation-config",
    "Successfully installed fedbary",
    "Manually terminating ClientAppActor",
    "(raylet",
    "metrics exporter agent",
    "Tip: In future versions of Ray",
)
"""Lines that Flower and Ray print in every simulation, and that its user need not know."""


@contextmanager
def progress_bar(console: Console, transient: bool = False) -> Iterator[Progress]:
    """Show a bar that moves only when told to; a transient one disappears at the end."""
    columns: tuple[Any, ...] = (
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(
        *columns,
        console=console,
        auto_refresh=False,
        transient=transient,
        speed_estimate_period=ALL_SECONDS,
    ) as progress:
        yield progress


def show_rounds(process: subprocess.Popen[bytes], file: Path) -> int:
    """Print a program's lines, without those of `OF_FLOWER`, above a bar of its running round.

    It returns the program's exit code.

    Parameters
    ----------
    process
        Its output is piped.
    file
        File of its server's progress.
    """
    console = Console()
    with progress_bar(console, transient=True) as bar:
        task = bar.add_task("", total=1.0, left="", visible=False)
        reader = threading.Thread(target=_print_lines, args=[process, console], daemon=True)
        reader.start()
        first: tuple[float, float] | None = None
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            if (now := Round.read(file)) is None:
                continue
            then, part = first = first or (time.monotonic(), now.part)
            pace = (time.monotonic() - then) / (now.part - part) if now.part > part else None
            left = "" if pace is None else f"about {duration(pace * (1 - now.part))} left"
            bar.update(
                task,
                completed=now.answered,
                total=now.asked,
                description=f"round {now.round}/{now.rounds}  {now.doing} "
                f"{now.answered} of {now.asked} clients",
                left=left,
                visible=True,
                refresh=True,
            )
        reader.join()
    return process.returncode


def show_lines(process: subprocess.Popen[bytes]) -> int:
    """Pass a program's lines on, without those of `OF_FLOWER`; return its exit code."""
    streams = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    readers = [threading.Thread(target=_pass_on, args=pair, daemon=True) for pair in streams]
    for reader in readers:
        reader.start()
    code = process.wait()
    for reader in readers:
        reader.join(LAST_SECONDS)
    return code


def _pass_on(source: IO[bytes], target: IO[str]) -> None:
    with source:
        for line in source:
            text = line.decode(errors="replace")
            if _is_ours(text):
                target.write(text)
                target.flush()


def _is_ours(line: str) -> bool:
    return bool(line.strip()) and not any(words in line for words in OF_FLOWER)


def _print_lines(process: subprocess.Popen[bytes], console: Console) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        text = Text.from_ansi(line.decode(errors="replace").rstrip("\r\n"))
        if _is_ours(text.plain):
            console.print(text, soft_wrap=True)
