"""No two things share a name: files of the house, and public classes and types."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("fedbary", "strategies", "client_app", "server_app")

FOUND_BY_NAME = {
    f"fedbary/{room}"
    for room in (
        "attacks", "data/images", "data/tables", "inference", "methods", "models",
        "report/sections", "runs/tracking", "scores", "tasks",
    )
}  # fmt: skip
"""Folders whose files are called as a part is, or as a task."""

AGREED = {"Parameters", "Tracker"}
"""Classes that every file of such a folder has."""


def public_files(root):
    """Return by its name where each public file lies, but for those that are found by name."""
    found = defaultdict(list)
    for top in CODE:
        for file in sorted((root / top).rglob("*.py")):
            folder = file.parent.relative_to(root).as_posix()
            if folder not in FOUND_BY_NAME and not file.name.startswith("_"):
                found[file.stem].append(folder)
    return found


def public_types(root):
    """Return by its name which files define each public class, and each type by another name."""
    found = defaultdict(list)
    for top in CODE:
        for file in sorted((root / top).rglob("*.py")):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                for name in _named(node):
                    if not name.startswith("_"):
                        found[name].append(str(file.relative_to(root)))
    return found


def _named(node):
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        yield from (name for name in names if name[0].isupper() and not name.isupper())


def importers(root):
    """Return for each module with an underscore how many files import it."""
    count = defaultdict(int)
    for top in CODE:
        for file in (root / top).rglob("*.py"):
            modules = set()
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    modules.add(node.module)
                    modules.update(f"{node.module}.{alias.name}" for alias in node.names)
            for module in modules:
                if module.rpartition(".")[2].startswith("_"):
                    count[module] += (root / module.replace(".", "/")).with_suffix(".py").exists()
    return count


def twice(found):
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_two_files_share_a_name():
    assert twice(public_files(ROOT)) == {}


def test_no_two_types_share_a_name():
    assert twice(public_types(ROOT)).keys() <= AGREED, twice(public_types(ROOT))


def test_what_many_import_has_no_underscore():
    assert {module: n for module, n in importers(ROOT).items() if n >= 9} == {}


@pytest.mark.parametrize("line", ["class Gate:\n    pass", "Gate = tuple[int, str]"])
def test_a_name_that_is_given_twice_is_found(line, tmp_path):
    for top in CODE[:2]:
        (tmp_path / top).mkdir()
        (tmp_path / top / "gate.py").write_text(line)
    assert twice(public_types(tmp_path)).keys() == {"Gate"}
    assert twice(public_files(tmp_path)).keys() == {"gate"}
