"""The commands simulate, resume and deploy: settings from words, a folder, a run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Timer

import yaml

from fedbary.attacks import require_simulation
from fedbary.errors import RunError, SettingError, Stopped
from fedbary.launching.launch import launch, located, require_file, validate_run
from fedbary.launching.programs import Killed, failure, run_program
from fedbary.launching.simulation import PROGRAMS, Simulate
from fedbary.launching.watcher import temporary_folder
from fedbary.runs.location import (
    DEFENCES,
    METRICS,
    SETTINGS,
    as_written,
    claimed_folder,
    is_deployed,
    is_whole,
    read_settings,
)
from fedbary.runs.own_code import require_trusted
from fedbary.settings.config import DEFAULTS, Settings, parse_overrides, resolve, validated
from fedbary.settings.modes import require_real_time, require_virtual_time

CHANGEABLE = ("rounds", "max_skipped", *DEFENCES)
"""Settings that a run may change when it goes on."""

PATIENCE = 3.5
"""Seconds after which a command announces a run that it has not checked yet."""


def simulate(words: list[str]) -> None:
    """Run a simulated federation: a file of settings, if one is named first, and overrides.

    The simulation's program starts before the words are read, which takes seconds.
    """
    engine = "inline" if "engine=inline" in words else "ray"
    with PROGRAMS[engine]() as started:
        settings = _settings(words)
        with claimed_folder(settings, Path.cwd()) as folder:
            _simulate(settings, folder, started if settings.engine == engine else None)


def resume(
    run: Path,
    checkpoint: str | int,
    words: Sequence[str] = (),
    own_code: bool = False,
    without: Sequence[str] = (),
) -> None:
    """Go on with a simulated run from its `last` or its `previous` checkpoint, or a round's.

    The words may be `rounds=`, a larger number of rounds, which a whole run goes on to, too;
    `max_skipped=`; and the server's defences. `without` names sites that take part no more.
    """
    given = parse_overrides([*words])
    if others := given.keys() - {*CHANGEABLE}:
        name = min(others)
        allowed = f"one of {', '.join(CHANGEABLE)}; the run keeps its other settings"
        raise SettingError(name, given[name], allowed)
    with as_written(run):
        if is_deployed(run):
            going_on = shlex.join([*words, f"output={run}", f"resume={checkpoint}"])
            allowed = (
                f"a simulated run; this one had real servers: repeat its command with {going_on}"
            )
            raise SettingError("run", str(run), allowed)
        made = read_settings(run)
        require_trusted(made, run, own_code)
        settings = validated({**made, "resume": checkpoint, **given})
    if without:
        from fedbary.runs.sites import leave_out

        leave_out(run, without)
    if "rounds" in given:
        from fedbary.methods import require_method
        from fedbary.runs.resume import lengthen
        from fedbary.tasks import task_of

        require_method(settings)
        task_of(settings).require_same_data(run)  # a run that is refused stays whole
        lengthen(run, settings)
    _simulate(settings, run.resolve())


def replay(run: Path, output: Path, own_code: bool = False) -> None:
    """Make a run without rounds again, in one process and in the order of its journal.

    Raises
    ------
    RunError
        If the posterior is not the run's, bit for bit.
    """
    from fedbary.runs.journal import journal_of, require_repeated
    from fedbary.runs.resume import require_ended

    with as_written(run):
        require_ended(run)
        held = read_settings(run)
        require_trusted(held, run, own_code)
        if held.get("mode") != "async":
            allowed = "a run with mode=async; other runs repeat from their settings"
            raise SettingError("run", str(run), allowed)
        changes = {"speeds": str(run.resolve() / METRICS), "resume": "none", "engine": "inline"}
        settings = validated({**held, **changes, "output": str(output)})
        journal_of(settings)  # raises an error if it cannot be repeated
    with claimed_folder(settings, Path.cwd()) as folder:
        _simulate(settings, folder)
    require_repeated(run, folder)


def look(words: list[str], sites: list[Path], output: Path, force: bool) -> None:
    """Look at the tables of sites, or at the parts of a data set, in a program of its own."""
    from fedbary.launching.deploy import site_configs
    from fedbary.trained.writing import require_free

    named = [word for word in words if word.startswith("task=")]
    settings = _settings([*words, *([] if named else ["task=tables"]), *_counted(words, sites)])
    require_free([output], force)
    nodes = [{**config} for config in site_configs(sites)]
    prepared = located(settings, output.resolve())
    if not sites:
        require_file("dataset", prepared)
    given = {"settings": prepared.model_dump(), "nodes": nodes, "force": force}
    with temporary_folder() as scratch:
        file = scratch / "look.yaml"
        file.write_text(yaml.safe_dump(given), encoding="utf-8")
        command = [sys.executable, "-m", "fedbary.server_app.engine.look", str(file)]
        code = run_program(command, None, None)
    if code < 0:
        raise failure(code, "look")
    if code:  # the program has said why
        sys.exit(code)
    print(f"Look: {output}")


def _counted(words: Sequence[str], sites: Sequence[Path]) -> list[str]:
    """Return the setting of the number of clients, by the sites, if there are any."""
    if sites and (said := [word for word in words if word.startswith("clients=")]):
        allowed = f"no value, as {len(sites)} --site are given"
        raise SettingError("clients", said[-1].partition("=")[2], allowed)
    return [f"clients={len(sites)}"] if sites else []


def deploy(words: list[str], sites: list[Path]) -> None:
    """Run a federation of real servers, on the data of sites, if there are any."""
    settings = _settings([*words, *_counted(words, sites)])
    if settings.dataset == "none" and not sites:
        raise SettingError("dataset", "none", "a data set, or --site with each site's data")
    require_simulation(settings.attack)
    require_real_time(settings)
    from fedbary.launching.deploy import deploy as run_lab
    from fedbary.launching.deploy import site_configs

    site_configs(sites)  # raises an error if they are wrong
    with claimed_folder(settings, Path.cwd()) as folder:
        try:
            with _announced(settings, "a SuperLink and its SuperNodes"):
                prepared = validate_run(settings, folder, own_data=bool(sites))
            run_lab(prepared, sites)
        except Stopped:
            going_on = shlex.join([f"output={folder}", "resume=last"])
            again = f"repeat the command with {going_on} to continue"
            raise _stopped(folder, again) from None
    print(f"Results: {prepared.output}")


def _simulate(settings: Settings, folder: Path, started: Simulate | None = None) -> None:
    if settings.dataset == "none":
        raise SettingError("dataset", "none", "a data set; without one, deploy with --site")
    require_virtual_time(settings)
    try:
        with nullcontext(started) if started else PROGRAMS[settings.engine]() as simulate:
            with _announced(settings, "Flower and Ray" if settings.engine == "ray" else ""):
                prepared = validate_run(settings, folder)
            launch(prepared, simulate=simulate)
    except (Stopped, Killed) as end:
        if not (folder / SETTINGS).exists():
            raise
        from fedbary.runs.tracking import note_killed

        note_killed(settings, folder)
        command = shlex.join(["fedbary", "resume", str(folder)])
        going_on = f"{command} goes on from the last whole round"
        if isinstance(end, Killed):
            raise RunError(f"{end}; {going_on}") from None
        raise _stopped(folder, going_on) from None
    print(f"Results: {prepared.output}")


def _stopped(folder: Path, going_on: str) -> Stopped:
    """Return how a run goes on that was stopped: not at all before it began, or after its end."""
    if is_whole(folder):
        return Stopped(f"the run had ended: {folder}")
    return Stopped(going_on) if (folder / SETTINGS).exists() else Stopped()


@contextmanager
def _announced(settings: Settings, starts: str) -> Iterator[None]:
    """Print the run's line once the run starts, at the latest after `PATIENCE`."""
    rounds = "1 round" if settings.rounds == 1 else f"{settings.rounds} rounds"
    line = f"{settings.clients} clients train {rounds} of {settings.strategy} on {settings.dataset}"
    if starts:
        line += f"; {starts} start, which takes a while"
    late = Timer(PATIENCE, print, [line], {"flush": True})
    late.daemon = True
    late.start()
    try:
        yield
        if not late.finished.is_set():
            print(line, flush=True)
    finally:
        late.cancel()


def _settings(words: list[str]) -> Settings:
    named = words and "=" not in words[0]
    file, words = (Path(words[0]), words[1:]) if named else (DEFAULTS, words)
    return resolve(parse_overrides(words), file)
