"""Which folders hold a run that a sweep may go on with: whole files, the same settings and code."""

import shutil
import subprocess

import pytest
import yaml
from runs_of import SHORT, lines

from fedbary.errors import RunError
from fedbary.launching.launch import located
from fedbary.runs import commit
from fedbary.runs.commit import CLONE_VARIABLE
from fedbary.runs.resume import resumable
from fedbary.runs.run_folder import POSTERIOR
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve

QUICK = {
    **SHORT, "clients": 2, "rounds": 3, "evaluate_clients": 0, "train_fraction": 0.2,
    "normalise": "none",  # clients of these tests' own answer no question
}  # fmt: skip


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A run that has written all but its end."""
    folder = tmp_path_factory.mktemp("cut") / "run"
    run_inline(located(resolve(QUICK), folder), folder)
    (folder / POSTERIOR).unlink()
    return folder


def noted(**changes):
    """Return how a folder's settings file gets other entries."""

    def change(folder):
        file = folder / "settings.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changes))

    return change


DAMAGE = {
    "another commit": noted(commit="0" * 40),
    "another version of a library": noted(versions={"torch": "0.1"}),
    "carried on by another commit": noted(
        resumed=[{"round": 1, "commit": "0" * 40, "started": "then"}]
    ),
    "notes of no form": noted(resumed=[5]),
    "a folder for metrics": lambda folder: [
        (folder / "metrics.jsonl").unlink(),
        (folder / "metrics.jsonl").mkdir(),
    ],
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
    found = resumable(folder, located(resolve(QUICK), folder))
    assert (found and found.resume) == (None if how else "last")


@pytest.mark.parametrize("damage", [b"", b"not whole"])
def test_a_damaged_last_checkpoint_costs_its_round_alone(cut, tmp_path, damage):
    folder = tmp_path / "run"
    shutil.copytree(cut, folder)
    (folder / "checkpoint-0003.safetensors").write_bytes(damage)
    settings = resumable(folder, located(resolve(QUICK), folder))
    assert settings.resume == "previous"
    run_inline(settings, folder)
    assert [line["nll"] for line in lines(folder)] == [line["nll"] for line in lines(cut)]


@pytest.mark.parametrize("changed", [{"lr": 0.5}, {"seed": 1}, {"rounds": 4}, {"rule": "WB"}])
def test_a_run_of_other_settings_is_none(cut, changed):
    assert resumable(cut, located(resolve({**QUICK, **changed}), cut)) is None


def test_a_whole_run_and_an_absent_one_are_none(cut, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(cut, folder)
    (folder / POSTERIOR).write_bytes(b"")
    assert resumable(folder, located(resolve(QUICK), folder)) is None
    assert resumable(tmp_path / "none", located(resolve(QUICK), tmp_path / "none")) is None


def test_a_run_that_ended_with_skipped_rounds_is_none(tmp_path):
    """It would only end again: the rounds that failed are in its checkpoint."""
    settings = located(resolve({**QUICK, "rounds": 9, "lr": 1e30}), tmp_path / "run")
    with pytest.raises(RunError, match="skipped"):
        run_inline(settings, tmp_path / "run")
    *_, last = sorted((tmp_path / "run").glob("checkpoint-*"))
    assert resumable(tmp_path / "run", settings) is None
    last.write_bytes(b"")
    assert resumable(tmp_path / "run", settings) is None


def git(clone, *words):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *words], cwd=clone, check=True, capture_output=True)


def test_a_commit_tells_changes_apart_and_is_not_that_of_a_folder_around(tmp_path, monkeypatch):
    monkeypatch.delenv(CLONE_VARIABLE, raising=False)
    (tmp_path / "inner").mkdir()
    (tmp_path / "code.py").write_text("1")
    git(tmp_path, "init")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-m", "first")
    found = []
    for text in ("1", "2", "3", "2"):
        (tmp_path / "code.py").write_text(text)
        commit._described.cache_clear()
        found.append(commit.git_commit(tmp_path))
    assert len(set(found)) == 3 and found[1] == found[3]
    assert all(name.startswith(f"{found[0]}-dirty-") for name in found[1:])
    assert commit.git_commit(tmp_path / "inner") == "unknown"
    commit._described.cache_clear()
