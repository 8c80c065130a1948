"""Dependencies run one way: client_app, server_app → strategies → fedbary, and no Flower there."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = {
    "fedbary": {"flwr", "flwr_datasets", "strategies", "client_app", "server_app"},
    "strategies": {"strategies", "client_app", "server_app"},
    "client_app": {"server_app"},
}


def imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


@pytest.mark.parametrize("room", FORBIDDEN)
def test_no_import_runs_against_the_arrows(room):
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    for file in files:
        tops = {name.split(".")[0] for name in imported(file)}
        assert not tops & FORBIDDEN[room], file


@pytest.mark.parametrize("module", ["gaussian", "aggregation"])
def test_the_ground_floor_knows_only_itself(module):
    below = {"fedbary.gaussian", "fedbary.errors", "fedbary.aggregation"}
    path = ROOT / "fedbary" / module
    for file in path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]:
        for name in imported(file):
            if name.startswith("fedbary"):
                assert any(name == b or name.startswith(b + ".") for b in below), (file, name)
