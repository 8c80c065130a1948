"""Sites that a run goes on without: its settings.yaml names them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fedbary.errors import SettingError
from fedbary.runs.location import SETTINGS
from fedbary.runs.lock import only_writer
from fedbary.runs.provenance import write_settings
from fedbary.settings.config import read_yaml

LEFT_OUT = "left_out"
"""The entry of settings.yaml: a list of names."""


def left_out_sites(folder: Path) -> frozenset[str]:
    """Return the names of the sites that a run goes on without."""
    return frozenset(map(str, read_yaml(folder / SETTINGS).get(LEFT_OUT, [])))


def leave_out(folder: Path, sites: Collection[str]) -> None:
    """Let a run go on without some of its sites; what they have sent so far stays.

    Raises
    ------
    SettingError
        If the run has no such site, or no others.
    RunError
        If another process is writing to the folder.
    """
    with only_writer(folder):
        content = read_yaml(folder / SETTINGS)
        known, gone = [*map(str, content["sites"])], {*left_out_sites(folder), *sites}
        if strange := sorted(gone - {*known}):
            raise SettingError("without", strange[0], f"a site of the run: {', '.join(known)}")
        if gone >= {*known}:
            raise SettingError("without", sorted(sites)[0], "one of several sites that are left")
        write_settings(folder, {**content, LEFT_OUT: sorted(gone)})
