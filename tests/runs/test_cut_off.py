"""Which folders hold a run that a sweep may go on with: whole files, the same settings and code."""

import shutil

import pytest
import yaml

from fedbary.launching.launch import located
from fedbary.runs.run_folder import POSTERIOR, is_cut_off
from fedbary.settings.config import resolve
from server_app.inline import run_inline

QUICK = {
    "engine": "inline", "device": "cpu", "clients": 2, "rounds": 3, "local_epochs": 1,
    "pictures": False, "samples": 2, "evaluate_clients": 0, "train_fraction": 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A run that has written all but its end."""
    folder = tmp_path_factory.mktemp("cut") / "run"
    run_inline(located(resolve(QUICK), folder), folder)
    (folder / f"{POSTERIOR}.safetensors").unlink()
    return folder


def other_commit(folder):
    file = folder / "settings.yaml"
    content = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**content, "commit": "0" * 40}))


DAMAGE = {
    "another commit": other_commit,
    "no settings": lambda folder: (folder / "settings.yaml").unlink(),
    "settings cut off": lambda folder: (folder / "settings.yaml").write_text("settings: {a: ["),
    "settings of no form": lambda folder: (folder / "settings.yaml").write_text("text"),
    "no checkpoint": lambda folder: [file.unlink() for file in folder.glob("checkpoint-*")],
    "checkpoints cut off": lambda folder: [
        file.write_bytes(file.read_bytes()[:100]) for file in folder.glob("checkpoint-*")
    ],
    "empty checkpoints": lambda folder: [
        file.write_bytes(b"") for file in folder.glob("checkpoint-*")
    ],
    "metrics of another run": lambda folder: (folder / "metrics.jsonl").write_text("{}\n" * 4),
    "no metrics": lambda folder: (folder / "metrics.jsonl").unlink(),
    "nothing": lambda folder: [file.unlink() for file in folder.iterdir() if file.is_file()],
}


@pytest.mark.parametrize("how", [None, *DAMAGE])
def test_a_damaged_folder_is_none_and_no_error(cut, tmp_path, how):
    folder = tmp_path / "run"
    shutil.copytree(cut, folder)
    if how:
        DAMAGE[how](folder)
    assert is_cut_off(folder, located(resolve(QUICK), folder)) == (how is None)


@pytest.mark.parametrize("changed", [{"lr": 0.5}, {"seed": 1}, {"rounds": 4}, {"rule": "WB"}])
def test_a_run_of_other_settings_is_none(cut, changed):
    assert not is_cut_off(cut, located(resolve({**QUICK, **changed}), cut))


def test_a_whole_run_and_an_absent_one_are_none(cut, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(cut, folder)
    (folder / f"{POSTERIOR}.safetensors").write_bytes(b"")
    assert not is_cut_off(folder, located(resolve(QUICK), folder))
    assert not is_cut_off(tmp_path / "none", located(resolve(QUICK), tmp_path / "none"))
