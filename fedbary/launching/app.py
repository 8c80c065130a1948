"""The folder that Flower takes for the app: a clone, or a copy of the wheel's content."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from fedbary import __version__
from fedbary.launching.watcher import folder_of_process
from fedbary.settings.config import DEFAULTS, ROOT

_PACKAGE = Path(__file__).parents[1]

_BESIDE = ("strategies", "client_app", "server_app")
"""Rooms that lie in the package when it is installed, and beside it in a clone."""


@cache
def app_folder() -> Path:
    """Return the folder that holds the apps, the packages they import and pyproject.toml.

    A clone is that folder. An installed package is copied into one that is laid out as a clone,
    which is removed when this process ends.
    """
    if (ROOT / "server_app").is_dir():
        return ROOT
    folder = folder_of_process() / f"fedbary-{__version__}"
    shutil.copytree(_PACKAGE / "app", folder)
    for room in _BESIDE:
        shutil.copytree(_PACKAGE / room, folder / room)
    others = shutil.ignore_patterns("app", *_BESIDE, DEFAULTS.name, "__pycache__")
    shutil.copytree(_PACKAGE, folder / "fedbary", ignore=others)
    shutil.copy(DEFAULTS, folder)
    return folder
