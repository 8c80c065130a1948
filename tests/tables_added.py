"""A file that stands beside the sets of tables as if it lay among them."""

import shutil
from pathlib import Path

from fedbary.data import tables
from fedbary.parts import registry


def added_to_tables(folder, monkeypatch):
    """Add the modules in a folder to those of `fedbary.data.tables`, for one test."""
    package = folder / "package"
    shutil.copytree(Path(tables.__file__).parents[1], package / "data")
    for file in folder.glob("*.py"):
        shutil.copy(file, package / "data" / "tables")
    monkeypatch.setattr(registry, "_PACKAGE", package)
    monkeypatch.setattr(tables, "__path__", [*tables.__path__, str(folder)])
