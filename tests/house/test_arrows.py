"""Dependencies run one way: client_app, server_app → strategies → fedbary, and no Flower there.

Rooms are the packages and modules of fedbary, the three folders beside it, and the folders in the
server's app. By name all are modules of fedbary. An arrow is an import, also one within a function,
or a module that is started with ``-m``.
"""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = {
    "fedbary": {"flwr", "flwr_datasets", "strategies", "client_app", "server_app"},
    "strategies": {"client_app", "server_app"},
    "client_app": {"server_app"},
}
PARTITIONERS = {
    ROOT / "fedbary" / file: {"flwr_datasets"}
    for file in ("data/partitioners.py", "settings/partition_names.py")
}
"""They find flwr-datasets, which needs no Flower, by its name for those who ask for it."""

BESIDE = ("strategies", "client_app", "server_app")
"""The rooms beside the folder `fedbary`."""


def place(name):
    """Return where a module stands: `strategies.x` for `fedbary.strategies.x`."""
    own = name.removeprefix("fedbary.")
    return own if own.split(".")[0] in BESIDE else name


BY_NAME = {"import_module", "__import__", "find_spec", "library"}
"""Functions whose first argument names a module."""


@cache
def parsed(file):
    return ast.parse(file.read_text())


def imported(file):
    """Yield the modules that a file imports anywhere, and those that it names as a text."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in BY_NAME:
            named = node.args[0] if node.args else None
            if isinstance(named, ast.Constant):
                yield str(named.value)


@pytest.mark.parametrize("room", FORBIDDEN)
def test_no_import_runs_against_the_arrows(room):
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    for file in files:
        tops = {place(name).split(".")[0] for name in imported(file)}
        assert tops & FORBIDDEN[room] == PARTITIONERS.get(file, set()), file


@pytest.mark.parametrize("room", ["fedbary", *BESIDE])
def test_no_room_is_imported_under_a_general_name(room):
    """Ray and Flower look in other people's folders first, which may hold such a module."""
    for file in (ROOT / room).rglob("*.py"):
        tree = ast.parse(file.read_text())
        named = {name.split(".")[0] for name in (*imported(file), *started(tree))}
        assert not named & {*BESIDE}, file


@pytest.mark.parametrize("module", ["gaussian", "aggregation"])
def test_the_ground_floor_knows_only_itself(module):
    below = {f"fedbary.{room}" for room in ("gaussian", "errors", "parts", "aggregation")}
    path = ROOT / "fedbary" / module
    for file in path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]:
        for name in imported(file):
            if name.startswith("fedbary"):
                assert any(name == b or name.startswith(b + ".") for b in below), (file, name)


TOP = ("fedbary", "strategies", "client_app", "server_app")

FOLDERS = ("engine", "grids", "roster")
"""Of the server's app, a room each."""

MOST_LEVELS = 12
"""How many rooms stand on one another; a room stands above all that it imports."""


def room(module):
    """Return the room of a module by its dotted name; None for a stranger's."""
    top, *rest = place(module).split(".")
    if top == "server_app" and rest and rest[0] in FOLDERS:
        return f"{top}.{rest[0]}"
    if top != "fedbary":
        return top if top in TOP else None
    return rest[0] if rest else None


def loaded(tree):
    """Yield the modules that a file imports anywhere, with what is taken from them."""
    hints = [
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    ]
    for node in ast.walk(tree):
        if node in hints:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def started(tree):
    """Yield the modules that are named after "-m" in a list of words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            texts = [getattr(word, "value", None) for word in node.elts]
            pairs = zip(texts, texts[1:], strict=False)
            yield from (word for flag, word in pairs if flag == "-m" and isinstance(word, str))


@cache
def arrows(programs=True):
    """Return for each room those that it needs, each with a file that says so.

    `programs` are the modules that are started with ``-m``.
    """
    found = {}
    for top in TOP:
        for file in sorted((ROOT / top).rglob("*.py")):
            here = room(".".join(file.relative_to(ROOT).with_suffix("").parts))
            tree = parsed(file)
            for module in (*loaded(tree), *(started(tree) if programs else ())):
                there = room(module)
                if there not in (None, here) and here != "__init__":
                    found.setdefault(here, {}).setdefault(there, file)
    return found


def layout():
    """Return the rooms of fedbary in the order of the layout's page."""
    page = (ROOT / "docs" / "project" / "layout.md").read_text(encoding="utf-8")
    drawn = page.partition("\nfedbary/")[2].partition("\nstrategies/")[0]
    cells = re.findall(r"^  (\w.*?)(?:  +|$)", drawn, re.MULTILINE)
    return [name.strip(" /") for cell in cells for name in cell.split(",")]


def test_no_rooms_need_each_other():
    TopologicalSorter(arrows()).prepare()


def test_few_rooms_stand_on_one_another():
    needs = arrows(programs=False)

    @cache
    def level(here):
        return 1 + max(map(level, needs.get(here, ())), default=0)

    levels = {here: level(here) for here in needs}
    assert max(levels.values()) <= MOST_LEVELS, sorted(levels.items(), key=lambda pair: pair[1])


def test_fedbary_has_few_rooms():
    held = [f for f in (ROOT / "fedbary").iterdir() if f.suffix == ".py" or f.is_dir()]
    assert len([f for f in held if f.name != "__pycache__"]) <= 25


def test_the_layout_names_every_room_and_each_needs_only_those_above_it():
    drawn = layout()
    modules = {f.stem for f in (ROOT / "fedbary").iterdir() if not f.name.startswith(("_", "py."))}
    assert sorted(drawn) == sorted(modules)
    for here, needs in arrows().items():
        for there, file in needs.items():
            if here in drawn and there in drawn:
                assert drawn.index(there) < drawn.index(here), f"{file}: {there}"
