"""A user's own code: when it may run, and whether it is still that of a run.

It runs only on the user's request, never from the run's folder. Its digest is part of what sites
agree on, and so of the run's folder. A function of data has none: its rows are compared.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec
from itertools import chain
from pathlib import Path
from typing import Any

from fedbary.data.forms import Kept, backbone_of, source_of
from fedbary.errors import SettingError
from fedbary.parts.imports import own_function
from fedbary.parts.registry import is_factory


def _is_own_data(name: str) -> bool:
    return source_of(name).is_code


def _is_own_backbone(name: str) -> bool:
    source = backbone_of(name)
    return source is not None and source.is_code


NAMES_CODE: Mapping[str, Callable[[str], bool]] = {
    "task": is_factory,
    "attack": is_factory,
    "method": is_factory,
    "rule": is_factory,
    "model": is_factory,
    "backbone": _is_own_backbone,
    "dataset": _is_own_data,
    "test_dataset": _is_own_data,
    "ood_dataset": _is_own_data,
}
"""Settings that may name code, ``package.module:function``, each with a test of its value."""

VALIDATED = ("task", "method", "rule", "attack")
"""Settings whose code is imported where settings are validated."""


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


COMPARED = (*VALIDATED, "model")
"""Settings whose code is compared by an entry of its own; a backbone's is part of its digest."""

LIBRARIES = ("site-packages", "dist-packages", "lib-dynload", Path(json.__file__).parents[1].name)
"""Names of the folders of installed libraries."""

OURS = ("fedbary", "strategies", "client_app", "server_app")
"""Packages of this project: a run's folder has their version and commit."""


def code_config(settings: object) -> dict[str, str]:
    """Return a message's entries on the code that settings name: a digest for each setting."""
    names = {setting: str(getattr(settings, setting, "none")) for setting in COMPARED}
    return {
        f"code-{setting}": code_digest(setting, name)
        for setting, name in names.items()
        if NAMES_CODE[setting](name)
    }


def require_same_code(settings: object, config: Mapping[str, Any]) -> None:
    """Raise a SettingError unless the settings' code is that of a message, or a run's signature."""
    for key, own in code_config(settings).items():
        if config.get(key) != own:
            setting = key.removeprefix("code-")
            told = config.get(key, "none")
            allowed = f"the code of the run, digest {told}; this is {own}: put the old code back"
            raise SettingError(setting, getattr(settings, setting), allowed)


_digests: Kept[str] = Kept(64)


def code_digest(setting: str, name: str) -> str:
    """Return a digest of the code that ``package.module:function`` computes with.

    It is of all Python files of the function's package, or of its module, and of the packages and
    modules that these import, but for installed libraries. Comments, docstrings and layout do not
    count. It does not see files that are no Python, nor modules that are imported by a computed
    name. A function or class without a file, as in a notebook, counts by its own source. A module
    that a process has imported keeps its digest, also if its file changes.

    Raises
    ------
    SettingError
        If the function cannot be imported.
    """
    function = own_function(setting, name, "function")
    return _digests.get(name, function, lambda: _digest(re.split(r"[.:]", name)[0], function))


def _digest(top: str, function: Any) -> str:
    found, seen, waiting = hashlib.blake2b(digest_size=16), {*OURS}, [top]
    if not _roots(top):
        # A class of a notebook has no source, but its methods do.
        kin = [held for held in getattr(function, "__mro__", ()) if held.__module__ == top]
        for part in (function, *chain(*(vars(held).values() for held in kin))):
            with suppress(OSError, TypeError):
                found.update(inspect.getsource(part).encode())
    while waiting:
        if (name := waiting.pop(0)) in seen:
            continue
        seen.add(name)
        for root in _roots(name):
            is_library = root.parent.name in LIBRARIES
            files = sorted(root.rglob("*.py")) if root.is_dir() else [root]
            for file in files if name == top or not is_library else ():
                text, imported = _plain(file.read_bytes(), is_library)
                called = f"{name if name != top else ''} {file.relative_to(root)}"
                found.update(f"{called} {len(text)} {text}".encode())
                waiting += sorted(imported)
    return found.hexdigest()


def _roots(name: str) -> list[Path]:
    """Return the folders of a package, or the file of a module; none for one without a file."""
    spec = _spec(name, None)
    if spec is None:
        return []
    own = [spec.origin] if spec.has_location and spec.origin else []
    return [Path(place).resolve() for place in spec.submodule_search_locations or own]


def _plain(source: bytes, is_library: bool) -> tuple[str, set[str]]:
    """Return a source without comments, docstrings and layout, and the modules that it imports.

    A library's comes as it is, without its imports.
    """
    try:
        tree = ast.parse(b"" if is_library else source)
        imported = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module)
            elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
        text = ast.unparse(tree) or source.hex()
    except (SyntaxError, ValueError, RecursionError):  # no Python, or of another version
        return source.hex(), set()
    return text, {name.partition(".")[0] for name in imported}


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
