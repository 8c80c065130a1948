"""Sites that a run has forgotten: its settings.yaml names them, and they take part no more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbary.errors import SettingError
from fedbary.runs.location import SETTINGS
from fedbary.runs.provenance import write_settings
from fedbary.settings.config import read_yaml

FORGOTTEN = "forgotten"
"""The entry of settings.yaml: a list, the newest last, each with its `site`."""


def forgotten_by(folder: Path) -> list[dict[str, Any]]:
    """Return the notes of a run's settings.yaml on each forgotten site.

    Raises
    ------
    SettingError
        If it is no list of notes.
    """
    found = read_yaml(folder / SETTINGS).get(FORGOTTEN, [])
    if not isinstance(found, list) or not all(isinstance(n, dict) and "site" in n for n in found):
        raise SettingError(f"{folder / SETTINGS}: {FORGOTTEN}", found, "a list of sites")
    return found


def forgotten_sites(folder: Path) -> frozenset[str]:
    """Return the names of the sites that a run has forgotten."""
    return frozenset(str(note["site"]) for note in forgotten_by(folder))


def note_forgotten(folder: Path, notes: list[Mapping[str, Any]]) -> None:
    """Write notes on forgotten sites into a run's settings.yaml."""
    content = read_yaml(folder / SETTINGS)
    write_settings(folder, {**content, FORGOTTEN: [dict(note) for note in notes]})
