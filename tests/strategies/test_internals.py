"""Flower's internals: each is where `internals` looks for it, and nobody else looks."""

import ast
import logging
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import flwr
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import internals

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {
    "flwr",
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
            yield from ((name, "__name__") for name in names if name.split(".")[0] == "flwr")


FILE = ROOT / "strategies" / "internals.py"
INTERNAL = sorted({module for module, _ in imports(FILE)} - PUBLIC)


@pytest.mark.parametrize("module, name", sorted(imports(FILE)), ids=str)
def test_flower_has_it_still(module, name):
    assert hasattr(import_module(module), name), f"{module}.{name} has moved"


def test_nobody_else_takes_what_is_not_public():
    for room in ("strategies", "client_app", "server_app", "fedbary", "examples"):
        for file in (ROOT / room).rglob("*.py"):
            for module, name in imports(file):
                assert file == FILE or module in PUBLIC, f"{file}: {module}.{name}"


MOVED = """
import sys
import flwr.app, flwr.clientapp, flwr.serverapp.strategy, flwr.simulation

for name in sys.argv[1:]:
    sys.modules[name] = None  # an import of it fails; Flower's own modules have it already
import torch
from fedbary import client_app, server_app
from fedbary.server_app import experiment
from fedbary.strategies import RKLB, Client, CompressedGrid
from strategies_replies import reply, started


def posterior(mean, precision):
    return {"w_mean": torch.tensor([mean]), "w_log_var": -torch.tensor([precision]).log()}


replies = [reply(node, posterior(*held), num_examples=5) for node, held in enumerate(HELD, 1)]
arrays, _ = started(RKLB(), replies[0].content["arrays"]).aggregate_train(1, replies)
state = arrays.to_torch_state_dict()
torch.testing.assert_close(state, posterior(3.0, 2.0))
experiment._say("the last words")
"""


def test_what_needs_no_internal_works_where_all_have_moved():
    """Precisions 1 and 3 have the mean 2, and the means 0 and 4 weighted by them have 3."""
    held = "HELD = [(0.0, 1.0), (4.0, 3.0)]"
    done = subprocess.run(
        [sys.executable, "-c", held + MOVED, *INTERNAL], cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert len(INTERNAL) > 3 and done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "version, warns",
    [("1.43.0", 1), ("2.0", 1), ("1.43.0.dev20261101", 1), (flwr.__version__, 0), ("unknown", 0)],
)
def test_a_newer_flower_than_was_tested_is_named_once(version, warns, monkeypatch, caplog):
    monkeypatch.setattr(flwr, "__version__", version)
    internals.warn_of_newer_flower.cache_clear()
    with caplog.at_level(logging.WARNING, "flwr"):
        internals.warn_of_newer_flower()
        internals.warn_of_newer_flower()
    assert [version in line and internals.NEWEST_TESTED in line for line in caplog.messages] == (
        [True] * warns
    )


@pytest.mark.parametrize("name", ["UNKNOWN", "CLIENT_APP_RAISED_EXCEPTION"])
def test_the_codes_are_flower_s(name):
    assert getattr(internals.ErrorCode, name) == getattr(ErrorCode, name)


def test_a_message_is_numbered_and_given_other_content():
    InlineGrid(ClientApp(), 1, {})  # it sets whose messages this process makes
    message = Message(RecordDict(), 2, "train")
    other = internals.with_content(message, RecordDict({"arrays": ArrayRecord()}))
    internals.number(message, "7")
    assert (list(message.content), list(other.content)) == ([], ["arrays"])
    assert message.metadata.message_id == other.metadata.message_id == "7"
