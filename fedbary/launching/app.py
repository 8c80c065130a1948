"""The app that Flower runs: a clone, or a folder that is written for it and holds nothing else."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path

from fedbary import __version__
from fedbary.data.forms import user_path
from fedbary.errors import SettingError
from fedbary.launching.watcher import folder_of_process
from fedbary.runs.commit import ROOMS, code_files
from fedbary.settings.config import DEFAULTS, ROOT

_CLONE = ROOT if (ROOT / "server_app").is_dir() else None

_HELD = _CLONE or Path(__file__).parents[1] / "app"
"""The folder of pyproject.toml and LICENSE."""

_SECTIONS = ("[project]", "[tool.flwr.app]", "[tool.flwr.app.components]", "[tool.flwr.app.config]")

_FORMAT = """\
[tool.flwr.app]
fab-format-version = 1
flwr-version-target = "1.42.0"
"""
"""What Flower asks of an app that is published."""

_CPU = """
# PyTorch without CUDA takes 0.9 GB a run instead of 5. Name the index, and uncomment the lines.
# [[tool.uv.index]]
# name = "pytorch-cpu"
# url = "<PyTorch's CPU index>"
# explicit = true
#
# [tool.uv.sources]
# torch = [{ index = "pytorch-cpu" }]
"""

_SHIPPED = ("fedbary", *ROOMS, DEFAULTS.name, "LICENSE", "README.md", "pyproject.toml")


def app_folder() -> Path:
    """Return the folder beside which programs start: a clone, or that of `written_app`."""
    return _CLONE or written_app()


@cache
def written_app() -> Path:
    """Return a folder with the app, which is removed when this process ends."""
    return write_app(folder_of_process() / f"fedbary-{__version__}")


RUNS, LOOKS = "fedbary.server_app:app", "fedbary.server_app.look:app"
"""The ServerApps: of runs, and of looks at the sites' tables."""


def write_app(folder: Path, server: str = RUNS) -> Path:
    """Write Flower's app to a folder, which is laid out as a clone; return the folder.

    It has all that `flwr build` and `flwr app publish` ask for (FAB format 1). `server` is its
    ServerApp, `RUNS` or `LOOKS`.

    Raises
    ------
    SettingError
        If the folder is not empty, or is a file.
    """
    folder = user_path(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        allowed = "a folder that does not exist yet, or an empty one"
        raise SettingError("DEST", str(folder), allowed)
    for name, file in code_files().items():
        place = folder / ("" if name.split("/")[0] in ROOMS else "fedbary") / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    shutil.copyfile(DEFAULTS, folder / DEFAULTS.name)
    shutil.copyfile(Path(__file__).with_name("app.md"), folder / "README.md")
    shutil.copyfile(_HELD / "LICENSE", folder / "LICENSE")
    project = (_HELD / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(_of_app(project, server), encoding="utf-8")
    ignored = ["/*", *(f"!/{name}" for name in _SHIPPED), ""]  # runs, keys and data stay here
    (folder / ".gitignore").write_text("\n".join(ignored), encoding="utf-8")
    return folder


def _of_app(project: str, server: str) -> str:
    """Return the app's pyproject.toml, from that of the project: no extras, no tools, no build."""
    project = project.replace(f'serverapp = "{RUNS}"', f'serverapp = "{server}"')
    blocks = re.split(r"\n\n(?=(?:#.*\n)*\[)", project)
    kept = [block for block in blocks if any(f"{name}\n" in block for name in _SECTIONS)]
    text = re.sub(r"(?m)^license.*\n", "", "\n\n".join(kept) + "\n")
    text = text.replace("[project]\n", '[project]\nlicense = { file = "LICENSE" }\n')
    return text.replace("[tool.flwr.app]\n", _FORMAT) + _CPU
