"""The folder that Flower takes for the app: a clone, or a copy of the wheel's content."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from fedbary import __version__
from fedbary.launching.watcher import folder_of_process
from fedbary.settings.config import DEFAULTS, ROOT

_PACKAGE = Path(__file__).parents[1]


@cache
def app_folder() -> Path:
    """Return the folder that holds the apps, the packages they import and pyproject.toml.

    A clone is that folder. The wheel has the apps in `fedbary/app`; from there they are copied,
    with the installed package, to a folder that is removed when this process ends.
    """
    if (ROOT / "server_app").is_dir():
        return ROOT
    folder = folder_of_process() / f"fedbary-{__version__}"
    shutil.copytree(_PACKAGE / "app", folder)
    shutil.copytree(_PACKAGE / "strategies", folder / "strategies")
    others = shutil.ignore_patterns("app", "strategies", DEFAULTS.name, "__pycache__")
    shutil.copytree(_PACKAGE, folder / "fedbary", ignore=others)
    shutil.copy(DEFAULTS, folder)
    return folder
