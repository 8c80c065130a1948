"""Code is identity: what computes a run is what its sites agree on, and what goes on with it."""

import importlib
import linecache
import sys
import types

import pytest
import torch

import fedbary
from fedbary import client_app
from fedbary.backbones import load
from fedbary.errors import SettingError
from fedbary.runs.own_code import code_digest
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from fedbary.tasks._images import kept_features

MINE = '''
"""A network."""
import torch
from torch import nn
from helps import scale

class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)

    def forward(self, x):
        return scale * self.conv(x).mean((2, 3))

def net():
    torch.manual_seed(0)
    return Body()

def model(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))
'''
QUICK = {
    "engine": "inline", "device": "cpu", "pictures": False, "dataset": "own_data:bars",
    "clients": 3, "min_examples": 20, "rounds": 1, "method": "LDA", "evaluate_clients": 0,
}  # fmt: skip


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write the module's file, or one beside it; it is then imported anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text=MINE, name="mine.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        for module in [m for m in sys.modules if m.partition(".")[0] in ("mine", "helps", "parts")]:
            del sys.modules[module]
        importlib.invalidate_caches()

    write("scale = 1", "helps.py")
    write()
    return write


@pytest.mark.parametrize(
    ("text", "name", "same"),
    [
        (MINE.replace("mean", "amax"), "mine.py", False),
        (MINE.replace("6, 3", "6, 3, bias=False"), "mine.py", False),
        ("scale = 2", "helps.py", False),
        (
            MINE.replace('"A network."', '"Another."').replace("6, 3)", "6,   3)  # six"),
            "mine.py",
            True,
        ),
        ("scale = 3", "others.py", True),
    ],
)
def test_the_digest_finds_what_computes_and_no_more(text, name, same, written):
    before = code_digest("backbone", "mine:net")
    written(text, name)
    assert (code_digest("backbone", "mine:net") == before) == same


def test_every_file_of_a_package_counts(written):
    written("", "parts/__init__.py")
    written("def net(): pass", "parts/nets.py")
    before = code_digest("model", "parts.nets:net")
    written("half = .5", "parts/_layers.py")
    assert code_digest("model", "parts.nets:net") != before


def test_a_function_without_a_file_counts_by_its_own_source(monkeypatch):
    digests = set()
    for function in (test_every_file_of_a_package_counts, features_of):
        module = types.ModuleType("nowhere")
        module.net = function
        monkeypatch.setitem(sys.modules, "nowhere", module)
        digests.add(code_digest("model", "nowhere:net"))
    assert len(digests) == 2


CELL = """
class Net:
    def forward(self, x):
        return x
"""


def test_a_class_of_a_notebook_counts_by_its_methods(monkeypatch):
    digests = []
    for number, cell in enumerate((CELL, CELL.replace("x\n", "-x\n"), CELL)):
        file, module = f"<cell-{number}>", types.ModuleType("nowhere")
        monkeypatch.setitem(linecache.cache, file, (len(cell), None, cell.splitlines(True), file))
        exec(compile(cell, file, "exec"), vars(module))
        monkeypatch.setitem(sys.modules, "nowhere", module)
        digests.append(code_digest("model", "nowhere:Net"))
    assert digests[0] == digests[2] != digests[1]


def features_of(x, folder):
    task_of.cache_clear()
    settings = resolve({**QUICK, "backbone": "mine:net", "data_dir": str(folder)})
    return kept_features(x, task_of(settings).backbone, settings.data_dir)


def test_kept_features_are_those_of_the_code_that_made_them(written, tmp_path):
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    first = features_of(x, tmp_path)
    written(MINE.replace("mean", "amax"))
    second = features_of(x, tmp_path)
    by_hand = load("mine:net", "auto", "auto", torch.device("cpu")).body(x)
    torch.testing.assert_close(second, by_hand)
    assert not torch.allclose(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["backbone", "model"])
def test_a_run_is_loaded_and_goes_on_with_its_own_code_alone(setting, written, tmp_path):
    own = {"backbone": "mine:net"} if setting == "backbone" else {
        "model": "mine:model", "method": "barycentre", "bayesian_layers": 1, "local_epochs": 1,
    }  # fmt: skip
    chosen, folder = resolve({**QUICK, **own, "data_dir": str(tmp_path)}), tmp_path / "run"
    run_inline(chosen, folder)
    fedbary.load(folder, own_code=True)
    written(MINE.replace("scale *", "scale +"))
    task_of.cache_clear()
    later = chosen.model_copy(update={"start_from": str(folder)})
    for use in (
        lambda: fedbary.load(folder, own_code=True),
        lambda: task_of(chosen).require_same_data(folder),
        lambda: run_inline(later, tmp_path / "later"),
    ):
        with pytest.raises(SettingError, match=rf"{setting}: .*(digest|as in)"):
            use()
    written()
    task_of.cache_clear()
    fedbary.load(folder, own_code=True)


@pytest.mark.slow
def test_a_site_with_other_code_is_left_out_by_name(written, tmp_path, caplog):
    written(MINE.replace("64, outputs", "64, outputs, bias=True"), "parts.py")
    own = {"method": "barycentre", "bayesian_layers": 1, "model": "mine:model", "local_epochs": 1}
    chosen = resolve({**QUICK, **own})
    grid = InlineGrid(client_app.app, chosen.clients, chosen.model_dump())
    first = min(grid.get_node_ids())
    grid._contexts[first].run_config = {**chosen.model_dump(), "model": "parts:model"}
    run(grid, chosen, tmp_path / "run")
    assert "model: 'parts:model'; expected the code of the run" in caplog.text


@pytest.mark.slow
def test_a_client_whose_process_reads_another_order_of_rows_is_left_out_by_name(tmp_path, caplog):
    """Without the comparison it would train on rows that the server tests on."""
    chosen = resolve({**QUICK, "backbone": "own_backbones:tiny", "data_dir": str(tmp_path)})
    grid = InlineGrid(client_app.app, chosen.clients, chosen.model_dump())
    first = min(grid.get_node_ids())
    other = {**chosen.model_dump(), "dataset": "own_data:bars_in_another_order"}
    grid._contexts[first].run_config = other
    run(grid, chosen, tmp_path / "run")
    assert "partition 0 reads other rows of own_data:bars than the server" in caplog.text
