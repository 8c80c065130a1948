"""The key that each site's name belongs to, kept for a run that resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedbary.data.paths import content_of
from fedbary.errors import SettingError
from fedbary.runs.location import SITE_KEYS
from fedbary.runs.whole import write_whole


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
