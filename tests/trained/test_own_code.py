"""The code that a run's folder names runs only if it is asked for, and never from the folder."""

import os
import shutil
import sys

import pytest
import yaml
from refusals import refused

import fedbary
from fedbary.commands import start
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve

FACTORY = """
import os
from pathlib import Path
from torch import nn
Path(os.environ["TRACE"]).touch()
def made(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))
def data():
    raise ValueError("called")
"""
QUICK = {"pictures": False, "device": "cpu", "clients": 2, "rounds": 1, "local_epochs": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of a network of one's own, whose module is gone."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "vanished.py").write_text(FACTORY)
    os.environ["TRACE"] = str(folder / "trace")
    sys.path.insert(0, str(folder))
    words = {**QUICK, "engine": "inline", "model": "vanished:made", "bayesian_layers": 1}
    run_inline(resolve(words), folder / "run")
    sys.path.remove(str(folder))
    del sys.modules["vanished"], os.environ["TRACE"]
    return folder / "run"


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(start, "_simulate", lambda settings, folder: None)
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(made, tmp_path / "runs" / "theirs")


def named(run, **changes):
    """Let the run's settings name something else."""
    file = run / "settings.yaml"
    content = yaml.safe_load(file.read_text())
    content["settings"] |= changes
    file.write_text(yaml.safe_dump(content))


def resume(run, own_code):
    start.resume(run, "last", own_code=own_code)


@pytest.mark.parametrize("use", [fedbary.load, resume])
@pytest.mark.parametrize("setting", ["task", "method", "rule", "model", "dataset", "ood_dataset"])
def test_code_runs_only_if_it_is_asked_for(use, setting, run, tmp_path):
    (tmp_path / "asked.py").write_text(FACTORY)
    plain = {"model": "cnn", "dataset": "digits", "ood_dataset": "none"}
    plain |= {"task": "classification", "method": "barycentre", "rule": "RKLB"}
    named(run, **plain | {setting: "asked:made"})
    refused(f"^{setting}: 'asked:made'; expected --own-code", use, run, own_code=False)
    assert not (tmp_path / "trace").exists()


def test_code_that_is_asked_for_runs_where_it_lies_elsewhere(run, tmp_path):
    (tmp_path / "elsewhere.py").write_text(FACTORY)
    named(run, model="elsewhere:made")
    fedbary.load(run, own_code=True)
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize("use", [fedbary.load, resume])
@pytest.mark.parametrize(
    ("module", "place", "path"),
    [
        ("inside", "runs/theirs/inside.py", "runs/theirs"),
        ("runs.theirs.inside", "runs/theirs/inside.py", "."),
        ("theirs.deep.inside", "runs/theirs/deep/inside.py", "runs"),
        ("theirs.package", "runs/theirs/package/__init__.py", "runs"),
    ],
)
def test_code_in_the_folder_never_runs(use, module, place, path, run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / path)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(FACTORY)
    named(run, model=f"{module}:made")
    refused("does not lie in the run's folder", use, run, own_code=True)
    assert not (tmp_path / "trace").exists()


def test_a_link_into_the_folder_is_within_it(run, tmp_path):
    (run / "inside.py").write_text(FACTORY)
    (tmp_path / "linked.py").symlink_to(run / "inside.py")
    named(run, model="linked:made")
    refused("does not lie in the run's folder", fedbary.load, run, own_code=True)
    assert not (tmp_path / "trace").exists()
