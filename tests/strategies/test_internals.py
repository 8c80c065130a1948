"""Flower's internals: each is where `internals` looks for it, and nobody else looks."""

import ast
from importlib import import_module
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import internals

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {
    "flwr.app",
    "flwr.clientapp",
    "flwr.clientapp.mod",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
}


def imports(file):
    """Yield what a file takes of Flower, as pairs of a module and a name."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from ((name, "") for name in names if name.split(".")[0] == "flwr")


FILE = ROOT / "strategies" / "internals.py"


@pytest.mark.parametrize("module, name", sorted(imports(FILE)), ids=str)
def test_flower_has_it_still(module, name):
    assert hasattr(import_module(module), name), f"{module}.{name} has moved"


def test_nobody_else_takes_what_is_not_public():
    for room in ("strategies", "client_app", "server_app", "fedbary", "examples"):
        for file in (ROOT / room).rglob("*.py"):
            for module, name in imports(file):
                assert file == FILE or module in PUBLIC, f"{file}: {module}.{name}"


def test_a_message_is_numbered_and_given_other_content():
    InlineGrid(ClientApp(), 1, {})  # it sets whose messages this process makes
    message = Message(RecordDict(), 2, "train")
    other = internals.with_content(message, RecordDict({"arrays": ArrayRecord()}))
    internals.number(message, "7")
    assert (list(message.content), list(other.content)) == ([], ["arrays"])
    assert message.metadata.message_id == other.metadata.message_id == "7"
