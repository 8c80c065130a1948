"""A run's folder has one writer, takes no other run's checkpoint, and outlives a full disk."""

import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from every_method import NIGHT
from flwr.supercore.logger import FLOWER_LOGGER
from hostile_site import cut_off as stopped_at
from hypothesis import given
from hypothesis import strategies as st

from fedbary.errors import RunError, SettingError
from fedbary.runs.location import LOCK, only_writer, require_free
from fedbary.runs.resume import checkpoint_to_resume
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve

ROOT = Path(__file__).resolve().parents[2]
QUICK = {
    "engine": "inline", "clients": 2, "rounds": 3, "local_epochs": 1, "samples": 2,
    "evaluate_clients": 0, "device": "cpu", "normalise": "none", "train_fraction": 0.2,
}  # fmt: skip


def settings(**changes):
    return resolve({**QUICK, **changes})


def cut_off(folder, during=lambda: None, **changes):
    """Make a run that is interrupted while its third round trains."""
    chosen = settings(**changes)
    stopped_at(chosen, folder, 2 * chosen.clients, during=during)
    assert not (folder / LOCK).exists()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    cut_off(folder)
    return folder


@pytest.fixture
def folder(interrupted, tmp_path):
    return Path(shutil.copytree(interrupted, tmp_path / "run"))


def refused(folder, said, **changes):
    with pytest.raises(SettingError, match=said):
        checkpoint_to_resume(folder, settings(resume="last", **changes))


def test_of_two_that_go_on_at_once_one_wins_and_the_other_says_who_holds_the_folder(tmp_path):
    folder, said = tmp_path / "run", []

    def another():
        with pytest.raises(RunError) as caught:
            run_inline(settings(resume="last"), folder)
        said.append(str(caught.value))
        with pytest.raises(RunError, match=f"process {os.getpid()} since"):
            require_free(folder)

    cut_off(folder, another)
    assert len(said) == 1 and f"written by process {os.getpid()} since 2" in said[0]
    run_inline(settings(resume="last"), folder)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_lock_whose_holder_is_dead_holds_nobody_up(folder):
    (folder / LOCK).write_text("process 1 since 1970-01-01 00:00:00")
    require_free(folder)
    run_inline(settings(resume="last"), folder)
    assert (folder / "posterior.safetensors").exists() and not (folder / LOCK).exists()


def test_however_many_want_it_a_folder_has_one_writer_at_a_time(tmp_path):
    inside, most, times = [], [], []
    (tmp_path / "other").touch()

    def contend():
        for _ in range(50):
            with suppress(RunError), only_writer(tmp_path):
                inside.append(1)
                most.append(len(inside))
                times.append(1)
                inside.pop()

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1} and len(times) > 50


def test_a_folder_in_which_nothing_was_written_is_gone_again(tmp_path):
    with only_writer(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_removed_meanwhile_hides_no_error(tmp_path):
    with pytest.raises(RunError, match="^the cause$"), only_writer(tmp_path / "run"):
        shutil.rmtree(tmp_path / "run")
        raise RunError("the cause")


@pytest.mark.parametrize("other", [{"seed": 1}, {"rule": "WB"}])
def test_a_checkpoint_of_another_run_is_refused(other, folder, tmp_path):
    cut_off(tmp_path / "other", **other)
    for file in (tmp_path / "other").glob("checkpoint-*"):
        shutil.copy(file, folder)
    refused(folder, "checkpoint: .*of this run, not of another")


def test_a_checkpoint_under_another_round_s_name_is_refused(folder):
    shutil.copy(folder / "checkpoint-0001.safetensors", folder / "checkpoint-0002.safetensors")
    refused(folder, "checkpoint-0002.*resume=previous, round 1")


@given(data=st.data())
def test_no_byte_of_a_checkpoint_or_of_the_metrics_may_differ(data, interrupted, tmp_path):
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(interrupted, folder)
    name = data.draw(st.sampled_from(["checkpoint-0002.safetensors", "metrics.jsonl"]))
    content = bytearray((folder / name).read_bytes())
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, min(len(content), 2000) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        content = data.draw(st.binary(max_size=200))
    (folder / name).write_bytes(content)
    refused(folder, name)


def test_metrics_that_are_gone_or_another_run_s_are_refused(folder, tmp_path):
    lines = (folder / "metrics.jsonl").read_text()
    for foreign in (lines.replace('"round": 1', '"round": 2'), "", "\n\n\n", lines[:-40]):
        (folder / "metrics.jsonl").write_text(foreign)
        refused(folder, "metrics.jsonl")
    (folder / "metrics.jsonl").unlink()
    refused(folder, "metrics.jsonl")


def test_other_threads_on_resume_are_said_to_change_the_last_bits(folder, monkeypatch):
    said = []
    monkeypatch.setattr(FLOWER_LOGGER, "handle", lambda record: said.append(record.getMessage()))
    again = Path(shutil.copytree(folder, folder.with_name("again")))
    run_inline(settings(resume="last"), again)
    assert not any("bits" in line for line in said)
    made = (folder / "settings.yaml").read_text()
    (folder / "settings.yaml").write_text(made.replace("cpus_per_client: 1", "cpus_per_client: 2"))
    run_inline(settings(resume="last"), folder)
    assert any("cpus_per_client was 2 and is 1: the last bits will differ" in line for line in said)


FULL = """
import resource, shutil, sys, yaml
from pathlib import Path
import torch
from fedbary.settings.config import validated
from fedbary.errors import RunError
from fedbary.server_app.engine.inline import run_inline

torch.set_num_threads(1)
settings = validated(yaml.safe_load(open("settings.yaml")))
run_inline(settings, Path("whole"))
for size in map(int, sys.argv[1:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        run_inline(settings.model_copy(update={"resume": "last"}), Path(str(size)))
    except RunError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    run_inline(settings.model_copy(update={"resume": "last"}), Path(str(size)))
"""
"""Runs that cannot write files beyond some size, as on a full disk, and go on once they can."""


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(interrupted, tmp_path):
    largest = max(file.stat().st_size for file in interrupted.iterdir())
    picture = (interrupted / "partition.png").stat().st_size
    sizes = [0, 500, picture - 1, largest - 1] if NIGHT else [500, largest - 1]
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings().model_dump()))
    command = [sys.executable, "-c", FULL, *map(str, sizes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(sizes)
    assert all("cannot be written: File too large; once there is room" in line for line in said)
    whole = (tmp_path / "whole" / "posterior.safetensors").read_bytes()
    for size in sizes:
        assert (tmp_path / str(size) / "posterior.safetensors").read_bytes() == whole
        assert not list((tmp_path / str(size)).glob("*.partial"))


def test_the_posterior_is_there_before_the_pictures_and_one_that_fails_costs_a_line(
    tmp_path, monkeypatch
):
    folder, said = tmp_path / "run", []

    def fail(*arguments):
        assert (folder / "posterior.safetensors").exists()
        raise ValueError("a $ too many")
        yield

    monkeypatch.setattr("fedbary.tasks.classification.Classification.pictures", fail)
    monkeypatch.setattr(
        "fedbary.server_app.recorder.log", lambda level, *line: said.append(line[-1])
    )
    run_inline(settings(rounds=1), folder)
    assert "pictures: not drawn, ValueError: a $ too many" in said
    assert (folder / "learning-curves.png").exists() and (folder / "partition.png").exists()
