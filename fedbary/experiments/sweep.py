"""Run a grid: what is missing, several runs at a time, gathered in one table as they end."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pandas as pd
import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedbary.config import Settings
from fedbary.errors import RunError, SettingError
from fedbary.experiments.cost import Cost
from fedbary.experiments.grid import BOOKKEEPING, Experiment
from fedbary.experiments.table import (
    TABLE,
    differing_setting,
    read_run,
    read_table,
    write_about,
    write_table,
)
from fedbary.launch import launch, prepare, stop
from fedbary.runs import is_whole

POLL_SECONDS = 1.0


@dataclass
class Results:
    """A results folder: the table, a folder and a log for each run.

    A run is done if the table has it; one that was cut off is put aside, never removed.
    """

    path: Path
    done: dict[str, pd.DataFrame]

    @classmethod
    def open(cls, path: Path, experiment: Experiment) -> Results:
        """Read what a folder holds of an experiment; runs that ended since come into the table.

        Raises
        ------
        SettingError
            If the table cannot be read or holds a run of the same name with other settings.
        """
        results = cls(path, {})
        if (path / TABLE).exists():
            table = read_table(path)
            results.done = {str(name): rows for name, rows in table.groupby("run", sort=False)}
        for name in experiment.runs:
            if name not in results.done and is_whole(results.folder(name)):
                results.done[name] = read_run(name, results.folder(name))
        for name, settings in experiment.runs.items():
            if name in results.done:
                results._require_same(name, settings)
        return results

    def folder(self, name: str) -> Path:
        """Return a run's folder."""
        return self.path / "runs" / name

    def log(self, name: str) -> Path:
        """Return the file of a run's own lines."""
        return self.path / "logs" / f"{name}.log"

    def rounds(self, name: str) -> int:
        """Return how many rounds of a run are written."""
        try:
            with open(self.folder(name) / "metrics.jsonl", "rb") as file:
                return max(0, sum(1 for _ in file) - 1)
        except FileNotFoundError:
            return 0

    def put_aside(self, name: str) -> None:
        """Rename the folder of a run that was cut off."""
        folder, number = self.folder(name), 1
        if not folder.exists():
            return
        while (aside := folder.with_name(f"{name}.interrupted-{number}")).exists():
            number += 1
        folder.rename(aside)

    def add(self, name: str) -> None:
        """Take a run that has ended into the table."""
        self.done[name] = read_run(name, self.folder(name))
        self.write()

    def write(self) -> None:
        """Write the table."""
        if self.done:
            write_table(self.path, list(self.done.values()))

    def _require_same(self, name: str, settings: Settings) -> None:
        wanted = settings.model_dump(exclude=set(BOOKKEEPING))
        for key in ("dataset", "ood_dataset"):
            if wanted[key].endswith(".npz"):
                wanted[key] = Path(wanted[key]).name
        rows = self.done[name]
        if (different := differing_setting(rows, wanted)) is not None:
            has = rows.iloc[0][different]
            allowed = f"{has!r}, with which {name} was run in {self.path}, or another --results"
            raise SettingError(different, wanted[different], allowed)


def default_jobs(experiment: Experiment) -> int:
    """Return how many runs go at once: a core for each, but one that uses Ray takes them all."""
    if any(settings.engine == "ray" for settings in experiment.runs.values()):
        return 1
    return os.cpu_count() or 1


def plan(experiment: Experiment, results: Results, jobs: int, console: Console) -> None:
    """Print each run of the grid, whether it is done, and how long it should take."""
    cost = Cost(list(results.done.values()))
    listing = Table("run", "state", "estimate", title=experiment.title)
    left = 0.0
    for name, settings in experiment.runs.items():
        if name in results.done:
            listing.add_row(name, "done", "")
            continue
        seconds = cost.seconds(settings)
        left += seconds or 0
        state = "cut off" if results.folder(name).exists() else "to do"
        guess = duration(seconds) if seconds else "unknown: no data here"
        listing.add_row(name, state, guess)
    console.print(listing)
    todo = f"{len(experiment.runs.keys() - results.done.keys())} of {len(experiment.runs)}"
    console.print(f"{todo} runs to do, about {duration(left / jobs)}, {jobs} at a time")


def sweep(experiment: Experiment, results: Results, jobs: int, console: Console) -> dict[str, str]:
    """Make the runs that are missing; return the failed ones with what was wrong.

    The table is written after every run. When the sweep itself ends early, by Ctrl-C say, the
    runs at work are stopped, and the next sweep starts those again.
    """
    todo = {name: s for name, s in experiment.runs.items() if name not in results.done}
    (results.path / "logs").mkdir(parents=True, exist_ok=True)
    write_about(results.path, experiment.title, experiment.about)
    results.write()
    console.print(f"{len(experiment.runs) - len(todo)} of {len(experiment.runs)} runs are done")
    cost = Cost(list(results.done.values()))
    weights = {name: cost.seconds(s) or 60.0 for name, s in todo.items()}
    failed: dict[str, str] = {}
    with _progress(console) as progress, _runners(jobs) as pool:
        meter = _Meter(progress, results, todo, weights, jobs)
        futures: dict[Future[None], str] = {
            pool.submit(_one, results, name, settings): name for name, settings in todo.items()
        }
        for future in as_completed(futures):
            name = futures[future]
            error = future.exception()
            meter.ended.add(name)
            if error is None:
                results.add(name)
                console.print(f"{name}: {_score(results.done[name])}")
            else:
                failed[name] = str(error)
                console.print(f"[red]{name}: failed[/]: {error}")
    return failed


def duration(seconds: float) -> str:
    """Return seconds in the two largest units that say something."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _one(results: Results, name: str, settings: Settings) -> None:
    with _locked(results.log(name)) as log:
        results.put_aside(name)
        prepared = prepare(settings, results.folder(name).resolve())
        try:
            launch(prepared, log)
        except RunError:
            raise RunError(f"{_last_words(results.log(name))}; see {results.log(name)}") from None


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("fedbary: ") if lines else "it ended without a word"


def _score(rows: pd.DataFrame) -> str:
    last = rows.iloc[-1]
    return (
        f"accuracy {100 * last['accuracy']:.2f} %  NLL {last['nll']:.4f}  "
        f"ECE {100 * last['ece']:.2f} %  {duration(rows['seconds'].sum())}"
    )


@contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    """Open a run's log, empty, locked for as long as any process has it as its output.

    So a run whose sweep was killed cannot be started a second time while it is still at work.
    """
    with open(path, "a", encoding="utf-8") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError("another process is still at work on it") from None
        log.truncate(0)
        yield log


@contextmanager
def _runners(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """Give threads for runs; on the way out stop whatever still runs."""
    pool = ThreadPoolExecutor(jobs)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        stop(psutil.Process().children(recursive=True))
        pool.shutdown(wait=True)


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns: tuple[Any, ...] = (
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield progress


class _Meter:
    """Moves the bar as the runs' rounds are written, and says how much time is left.

    What is left is the estimate of the work ahead times how true estimates proved so far.
    """

    def __init__(
        self,
        progress: Progress,
        results: Results,
        todo: dict[str, Settings],
        weights: dict[str, float],
        jobs: int,
    ) -> None:
        self.ended: set[str] = set()
        self._progress, self._results, self._todo, self._weights = progress, results, todo, weights
        self._jobs = jobs
        self._started = time.monotonic()
        total = sum(weights.values())
        self._task: TaskID = progress.add_task("", total=total or 1, left="")
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        total = sum(self._weights.values())
        while len(self.ended) < len(self._todo):
            done = sum(self._part(name) * weight for name, weight in self._weights.items())
            elapsed = time.monotonic() - self._started
            pace = elapsed / done if done > 0.02 * total else 1 / self._jobs
            self._progress.update(
                self._task,
                completed=done,
                description=f"{len(self.ended)} of {len(self._todo)} runs",
                left=f"about {duration(pace * (total - done))} left",
            )
            time.sleep(POLL_SECONDS)

    def _part(self, name: str) -> float:
        if name in self.ended:
            return 1.0
        return min(1.0, self._results.rounds(name) / self._todo[name].rounds)
