"""Code that a run's folder names: it runs only on the user's request, never from the folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path

from fedbary.data.forms import backbone_of, source_of
from fedbary.errors import SettingError
from fedbary.parts.registry import is_factory


def _is_own_data(name: str) -> bool:
    return source_of(name).is_code


def _is_own_backbone(name: str) -> bool:
    source = backbone_of(name)
    return source is not None and source.is_code


NAMES_CODE: Mapping[str, Callable[[str], bool]] = {
    "task": is_factory,
    "model": is_factory,
    "backbone": _is_own_backbone,
    "dataset": _is_own_data,
    "test_dataset": _is_own_data,
    "ood_dataset": _is_own_data,
}
"""Settings that may name code, ``package.module:function``, each with a test of its value."""


def require_trusted(settings: Mapping[str, object], folder: Path, own_code: bool) -> None:
    """Refuse code that a run's settings name, unless the user asks for it and it lies elsewhere.

    Nothing is imported to find its place. Call it before the settings are validated: a task of
    one's own is imported for its parameters.

    Parameters
    ----------
    settings
        As the run's folder has them, by name.
    folder
        The run's.
    own_code
        True: the user asks for the code.

    Raises
    ------
    SettingError
        If a setting names code that the user has not asked for, or that lies within the folder.
    """
    for setting, names_code in NAMES_CODE.items():
        name = str(settings.get(setting, "none"))
        if not names_code(name):
            continue
        if not own_code:
            allowed = f"--own-code, in Python own_code=True: the run in {folder} names code, which "
            raise SettingError(setting, name, f"{allowed}is imported and called")
        within = folder.resolve()
        if any(place.is_relative_to(within) for place in _places(name.partition(":")[0])):
            raise SettingError(
                setting, name, f"code that does not lie in the run's folder {folder}"
            )


def _places(module: str) -> Iterator[Path]:
    """Yield the files and folders that importing a module would run or search."""
    path: list[str] | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = _spec(name, path)
        if spec is None:
            path = [place for held in path or [] if (Path(place := f"{held}/{part}")).is_dir()]
        else:
            path = list(spec.submodule_search_locations or [])
            if spec.has_location and spec.origin:
                yield Path(spec.origin).resolve()
        yield from (Path(place).resolve() for place in path)


def _spec(name: str, path: list[str] | None) -> ModuleSpec | None:
    """Return a module's import specification; None for a plain folder within a package."""
    found = (finder.find_spec(name, path) for finder in sys.meta_path)
    with suppress(KeyError):  # importlib looks for its parent, which is not imported
        return next((spec for spec in found if spec is not None), None)
    return None
