"""A service that starts a federation's next run when its sites report enough new examples.

It remembers nothing: the runs' folders, 0001, 0002, …, say what is next. So it may be killed and
started again at any moment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbary.errors import RunError, SettingError
from fedbary.launching.launch import located
from fedbary.launching.superlink import flwr_run
from fedbary.launching.watcher import temporary_folder
from fedbary.runs.location import is_whole
from fedbary.runs.lock import require_free
from fedbary.settings.config import Settings, resolve
from fedbary.settings.run_config import to_run_config

ITS_OWN = ("output", "resume")
"""Settings that the service chooses."""


def next_run(place: Path, given: Mapping[str, Any], file: Path) -> Settings:
    """Return the settings of the next run of a folder of runs.

    That is the newest run if it was cut off, or else a new one. It starts from the newest whole
    run before it. Without any it starts as the settings say.

    Raises
    ------
    SettingError
        If the settings do not fit, or name what the service chooses.
    RunError
        If the newest run is going on.
    """
    if named := [name for name in ITS_OWN if name in given]:
        raise SettingError(named[0], given[named[0]], "no value: the service chooses it")
    found = place.iterdir() if place.is_dir() else ()
    runs = {int(each.name): each for each in found if each.name.isdecimal()}
    number = max(runs, default=0)
    is_cut_off = number > 0 and not is_whole(runs[number])
    if is_cut_off:
        require_free(runs[number])
    else:
        number += 1
    folder = runs.get(number, place / f"{number:04d}").absolute()
    earlier = [each for each, run in runs.items() if each < number and is_whole(run)]
    start = {"start_from": str(runs[max(earlier)].absolute())} if earlier else {}
    chosen = {"output": str(folder), "resume": "last" if is_cut_off else "none"}
    return located(resolve({**given, **start, **chosen}, file), folder)


def look(superlink: str, place: Path, given: Mapping[str, Any], file: Path) -> Path | None:
    """Make the next run on a SuperLink if there are enough new examples; return its folder.

    It is None if the run has not ended with a result, or did not start. The run's own lines, which
    are printed, say why.
    """
    settings = next_run(place, given, file)
    with temporary_folder() as scratch:
        config = scratch / "run.toml"
        config.write_text(to_run_config(settings), encoding="utf-8")
        flwr_run(dict(os.environ), superlink, ["--run-config", str(config)], None)
    folder = Path(settings.output)
    return folder if is_whole(folder) else None


def stay(
    superlink: str, place: Path, given: Mapping[str, Any], file: Path, every: float | None
) -> None:
    """Look every so many seconds; once if that is None."""
    while True:
        try:
            if (folder := look(superlink, place, given, file)) is not None:
                print(f"Results: {folder}", flush=True)
        except RunError as error:
            print(f"fedbary: {error}", flush=True)
        if every is None:
            return
        time.sleep(every)
