"""What a run knows of its sites: each name's key, who has been forgotten, who is left out."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedbary.data.forms import content_of
from fedbary.errors import SettingError
from fedbary.runs.location import SETTINGS, SITE_KEYS, only_writer
from fedbary.runs.provenance import write_settings
from fedbary.runs.whole import write_whole
from fedbary.settings.config import read_yaml

FORGOTTEN = "forgotten"
"""The entry of settings.yaml: a list, the newest last, each with its `site`."""

LEFT_OUT = "left_out"
"""The entry of settings.yaml: a list of names."""


@dataclass(frozen=True)
class SiteKey:
    """The key of a node that was registered under a name; keys are the same if digests are.

    Parameters
    ----------
    registered : str
        The name under which it was registered.
    sha256 : str
        The digest of the public key, in hexadecimal.
    """

    registered: str = field(compare=False)
    sha256: str


def write_site_keys(folder: Path, keys: Mapping[str, SiteKey]) -> None:
    """Write each name's key, at once; nothing without keys, as in a simulation."""
    if keys:
        content = json.dumps({name: asdict(keys[name]) for name in sorted(keys)}, indent=1)
        write_whole(folder / SITE_KEYS, content.encode())


def read_site_keys(folder: Path) -> dict[str, SiteKey]:
    """Read the file of `write_site_keys`; nothing without it, as in older runs.

    Raises
    ------
    SettingError
        If the file is damaged.
    """
    file = folder / SITE_KEYS
    try:
        content = json.loads(content_of(file)) if file.exists() else {}
        keys = {name: SiteKey(**key) for name, key in content.items()}
        if not all(isinstance(part, str) for key in keys.values() for part in asdict(key).values()):
            raise ValueError("a key is no text")
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        allowed = "the file as the run wrote it, or no such file: names are then free again"
        raise SettingError(f"resume: {file}", error, allowed) from None
    return keys


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
