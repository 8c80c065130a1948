"""Run a grid: missing runs, several at a time, gathered in one table as they end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
from rich.console import Console
from rich.table import Table

from fedbary.errors import RunError, SettingError, one_line
from fedbary.launching.launch import launch, located, progress_bar, validate_run
from fedbary.launching.programs import Killed
from fedbary.launching.warm import Lost
from fedbary.runs.location import is_whole, locked, require_free
from fedbary.runs.progress import duration
from fedbary.runs.resume import is_changed, resumable
from fedbary.settings.config import Settings, bookkeeping
from fedbary.study.cost import RuntimeEstimator
from fedbary.study.grid import Experiment
from fedbary.study.table import (
    find_mismatch,
    is_table,
    public,
    read_run,
    read_table,
    result_rows,
    write_about,
    write_table,
)
from fedbary.tasks import task_of

POLL_SECONDS = 1.0

TABLE_SECONDS = 60.0
"""Seconds to wait for another sweep that writes the table."""


NOT_MADE = "not made"
"""Why a run is lacking that a sweep has not come to."""


@dataclass
class SweepFolder:
    """A results folder: the table, a folder and a log for each run.

    A run is done if the table has it. A run that was cut off goes on from its checkpoint. If its
    settings or code have changed, or its files are damaged, it is put aside, never removed.
    """

    path: Path
    done: dict[str, pd.DataFrame]

    @classmethod
    def open(cls, path: Path, experiment: Experiment) -> SweepFolder:
        """Read what a folder holds of an experiment; runs that ended since come into the table.

        Raises
        ------
        SettingError
            If the table cannot be read or holds a run of the same name with other settings.
        """
        results = cls(path, {})
        if is_table(path):
            table = read_table(path)
            results.done = {str(name): rows for name, rows in table.groupby("run", sort=False)}
        for name in experiment.runs:
            if name not in results.done and results.has(name):
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

    def has(self, name: str) -> bool:
        """Return whether a run's folder holds a whole run without damaged files.

        A run that has changed on its way does not count: its first rounds were another run's.
        """
        try:
            folder = self.folder(name)
            if not is_whole(folder) or is_changed(folder):
                return False
            return not read_run(name, folder).empty
        except SettingError:
            return False

    def rounds(self, name: str) -> int:
        """Return how many rounds of a run are written."""
        try:
            with open(self.folder(name) / "metrics.jsonl", "rb") as file:
                return max(0, sum(1 for _ in file) - 1)
        except FileNotFoundError:
            return 0

    def put_aside(self, name: str) -> None:
        """Rename the folder of a run that was cut off and cannot go on, and keep its log."""
        folder, number = self.folder(name), 1
        if not folder.exists():
            return
        while (aside := folder.with_name(f"{name}.interrupted-{number}")).exists():
            number += 1
        folder.rename(aside)
        shutil.copy(self.log(name), self.log(aside.name))

    def add(self, name: str) -> None:
        """Take a run that has ended into the table."""
        self.done[name] = read_run(name, self.folder(name))
        self.write()

    def write(self) -> None:
        """Write the table, with what another sweep of the folder has added to it since."""
        with locked(self.path, seconds=TABLE_SECONDS):
            if is_table(self.path):
                for name, rows in read_table(self.path).groupby("run", sort=False):
                    self.done.setdefault(str(name), rows)
            if self.done:
                write_table(self.path, list(self.done.values()))

    def _require_same(self, name: str, settings: Settings) -> None:
        wanted = settings.model_dump(exclude=set(bookkeeping()))
        rows = self.done[name]
        if (different := find_mismatch(rows, public(wanted))) is not None:
            has = rows.iloc[0][different]
            allowed = f"{has}, with which {name} was run in {self.path}, or another --results"
            raise SettingError(different, wanted[different], allowed)


def default_jobs(experiment: Experiment) -> int:
    """Return the number of runs at a time: a core for each, but a run on Ray takes them all."""
    if any(settings.engine == "ray" for settings in experiment.runs.values()):
        return 1
    cores = max(settings.cpus_per_client for settings in experiment.runs.values())
    return max(1, (os.cpu_count() or 1) // cores)


def plan(experiment: Experiment, results: SweepFolder, jobs: int, console: Console) -> None:
    """Print each run of the grid: done or not, and its estimated time."""
    cost = RuntimeEstimator(list(results.done.values()))
    listing = Table("run", "state", "estimate", title=experiment.title)
    left, unknown = 0.0, 0
    for name, settings in experiment.runs.items():
        if name in results.done:
            listing.add_row(name, "done", "")
            continue
        seconds = cost.seconds(settings)
        left += seconds or 0
        unknown += seconds is None
        state = "cut off" if results.folder(name).exists() else "to do"
        guess = duration(seconds) if seconds else "unknown: no data here"
        listing.add_row(name, state, guess)
    console.print(listing)
    todo = f"{len(experiment.runs.keys() - results.done.keys())} of {len(experiment.runs)}"
    told = [f"about {duration(left / jobs)}"] if left or not unknown else []
    told += [f"unknown for {unknown} whose data are not here"] if unknown else []
    console.print(", ".join([f"{todo} runs to do", *told, f"{jobs} at a time"]))


def sweep(
    experiment: Experiment, results: SweepFolder, jobs: int, console: Console
) -> dict[str, str]:
    """Make the missing runs; return those that failed, each with its error.

    The table is written after every run; where it cannot be, the run counts as failed. If the sweep
    itself ends early, by Ctrl-C for example, the active runs are stopped, and the next sweep
    resumes them.
    """
    todo = {name: s for name, s in experiment.runs.items() if name not in results.done}
    (results.path / "logs").mkdir(parents=True, exist_ok=True)
    about = results.path, experiment.title, experiment.about
    write_about(*about, dict.fromkeys(todo, NOT_MADE))
    results.write()
    console.print(f"{len(experiment.runs) - len(todo)} of {len(experiment.runs)} runs are done")
    cost = RuntimeEstimator(list(results.done.values()))
    weights = {name: cost.seconds(s) or 60.0 for name, s in todo.items()}
    waiting, running = dict(todo), dict[Future[None], str]()
    failed: dict[str, str] = {}
    ended: set[str] = set()
    lost: set[str] = set()

    def seconds_done() -> float:
        made = {n: results.rounds(n) / s.rounds for n, s in todo.items() if n not in ended}
        return sum(weight * min(1.0, made.get(name, 1.0)) for name, weight in weights.items())

    with progress_bar(console) as bar, ThreadPoolExecutor(jobs) as pool:
        total = sum(weights.values()) or 1.0
        task = bar.add_task("", total=total, completed=seconds_done(), left="")  # type: ignore[arg-type]
        try:
            while waiting or running:
                for name in [*waiting][: jobs - len(running)]:
                    running[_begun(pool, results, name, waiting.pop(name))] = name
                for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                    name, error = running.pop(future), future.exception()
                    if isinstance(error, Lost) and name not in lost:
                        lost.add(name)
                        waiting[name] = todo[name]
                        continue
                    ended.add(name)
                    try:
                        future.result()
                        results.add(name)
                        said = _score(todo[name], results.done[name])
                    except Exception as caught:  # noqa: BLE001 - the other runs go on
                        failed[name] = one_line(caught)
                        said = f"failed: {failed[name]}"
                    console.print(f"{name}: {said}", markup=False)
                done = seconds_done()
                bar.update(task, completed=done)
                seconds = bar.tasks[0].time_remaining or (total - done) / jobs
                told = f"{len(ended)} of {len(todo)} runs"
                left = f"about {duration(seconds)} left"
                bar.update(task, description=told, left=left, refresh=True)
        except BaseException:
            _stop(running)
            raise
    try:
        if failed:
            results.write()
        failed = {name: why for name, why in failed.items() if name not in results.done}
        write_about(*about, failed)
    except OSError:  # a full disk: the failures say it, and which file it is
        pass
    return failed


def _begun(
    pool: ThreadPoolExecutor, results: SweepFolder, name: str, settings: Settings
) -> Future[None]:
    """Begin a run, or go on with one; its data are fetched here, once for all runs."""
    found: Future[None] = Future()
    try:
        if results.has(name):
            found.set_result(None)
            return found
        folder = results.folder(name).resolve()
        require_free(folder)
        again = resumable(folder, located(settings, folder))
        if again is None:
            results.put_aside(name)
            results.log(name).write_bytes(b"")
        return pool.submit(_run, validate_run(again or settings, folder), results.log(name))
    except Exception as error:  # noqa: BLE001 - the other runs go on
        found.set_exception(error)
    return found


def _run(settings: Settings, file: Path) -> None:
    try:
        with open(file, "a", encoding="utf-8") as log:
            launch(settings, log)
    except (Killed, Lost):
        raise
    except RunError:
        raise RunError(f"{_last_words(file)}; see {file}") from None


def _stop(running: Collection[Future[None]]) -> None:
    """Kill what the sweep has started, until no run is left; each can go on."""
    for future in running:
        future.cancel()
    while not all(future.done() for future in running):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if not any("resource_tracker" in word for word in process.cmdline()):
                    process.kill()
        wait(running, 0.1)


def _last_words(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("fedbary: ") if lines else "it ended without output"


def _score(settings: Settings, rows: pd.DataFrame) -> str:
    """Return the scores of a run's result in its task's words, and its duration."""
    scores = {str(name): value for name, value in result_rows(rows).iloc[0].items()}
    return f"{task_of(settings).said(scores)}  {duration(rows['seconds'].sum())}"
