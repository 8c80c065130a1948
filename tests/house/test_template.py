"""The page's diff turns a project of `flwr new`'s shape into one whose variances train."""

import difflib
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file

from fedbary.server_app.engine.inline import InlineGrid

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "tests" / "foreign" / "flwr_new"
CONFIG = {"learning-rate": 0.01, "local-epochs": 3, "num-server-rounds": 4}


def files(form):
    """The lines of a project's files by name, those that are changed most first."""
    found = {file.name: file.read_text().splitlines() for file in (PROJECT / form).rglob("*.py")}
    return dict(sorted(found.items(), reverse=True))


def test_the_page_shows_the_difference():
    before, after = files("before"), files("after")
    assert before.keys() == after.keys()
    lines = [
        line
        for name in before
        for line in difflib.unified_diff(
            before[name], after[name], f"mine/{name}", f"mine/{name}", lineterm="", n=1
        )
    ]
    page = (ROOT / "docs" / "howto" / "foreign.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    assert shown.splitlines() == lines


@pytest.fixture
def trained(monkeypatch, tmp_path, caplog):
    """What a project trains, by the messages of three clients, and what its server logged."""

    def run(form):
        monkeypatch.syspath_prepend(PROJECT / form)
        for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.chdir(tmp_path)
        torch.manual_seed(0)
        server, client = (import_module(f"mine.{end}_app").app for end in ("server", "client"))
        net = import_module("mine.task").make_net()
        grid = InlineGrid(client, 3, CONFIG)
        server(grid, Context(1, 1, {}, RecordDict(), CONFIG))
        net.load_state_dict(load_file(tmp_path / "final_model.safetensors"))
        return net, caplog.text

    yield run
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        monkeypatch.delitem(sys.modules, name)


def test_before_it_averages_points(trained):
    net, log = trained("before")
    assert not [name for name in net.state_dict() if name.endswith("_log_var")]


def test_after_it_variances_train_and_differ_from_weight_to_weight(trained):
    net, log = trained("after")
    (log_var,) = (v for name, v in net.state_dict().items() if name.endswith("_log_var"))
    assert "hardly moved" not in log and "log-variances alike" not in log
    assert (log_var + 7).abs().mean() > 0.3 and log_var.std() > 0.1
