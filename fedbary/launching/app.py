"""The folder that Flower takes for the app: a clone, or a copy of the wheel's content."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from fedbary import __version__
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
    made = Path(tempfile.mkdtemp(prefix="fedbary-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    folder = made / f"fedbary-{__version__}"
    shutil.copytree(_PACKAGE / "app", folder)
    shutil.copytree(_PACKAGE / "strategies", folder / "strategies")
    others = shutil.ignore_patterns("app", "strategies", DEFAULTS.name, "__pycache__")
    shutil.copytree(_PACKAGE, folder / "fedbary", ignore=others)
    shutil.copy(DEFAULTS, folder)
    return folder
