"""A run that was cut off goes on from its last whole round as if nothing had happened."""

import subprocess
import sys

import pytest
import torch
import yaml
from every_method import NIGHT
from hostile_site import cut_off as stopped_at
from hostile_site import killed_at, run_with
from runs_of import SHORT, posterior, same
from runs_of import timeless_lines as lines

from fedbary import client_app
from fedbary.errors import RunError, SettingError
from fedbary.runs.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from fedbary.runs.location import run_folder
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve

ROUNDS, TRAINING = 3, 2
QUICK = {
    **SHORT, "clients": 3, "rounds": ROUNDS, "samples": 3, "participation": 0.67, "prior": "global",
    "server_momentum": 0.5, "lr_schedule": "cosine", "normalise": "none", "train_fraction": 0.3,
}  # fmt: skip


def settings(**changes):
    return resolve({**QUICK, **changes})


def same_result(one, other):
    return same(posterior(one), posterior(other)) and lines(one) == lines(other)


def cut_off(folder, messages, **changes):
    stopped_at(settings(**changes), folder, messages, ("train", "evaluate"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_inline(settings(), folder)
    return folder


@pytest.mark.parametrize("messages", [0, 1, 3, 5, 8, 14] if NIGHT else [3, 14])
def test_interrupted_at_any_message_the_final_model_and_the_metrics_are_the_same(
    messages, whole, tmp_path
):
    cut_off(tmp_path / "run", messages)
    assert not (tmp_path / "run" / "posterior.safetensors").exists()
    run_inline(settings(resume="last"), tmp_path / "run")
    assert same_result(tmp_path / "run", whole)
    noted = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())["resumed"]
    assert [note["round"] for note in noted] == [messages // (TRAINING + 3)]


def test_packed_messages_are_packed_alike_after_an_interruption(tmp_path):
    run_inline(settings(compress="all"), tmp_path / "whole")
    cut_off(tmp_path / "run", 8, compress="all")
    run_inline(settings(compress="all", resume="last"), tmp_path / "run")
    assert same_result(tmp_path / "run", tmp_path / "whole")


def test_killed_after_the_last_round_the_results_are_still_written(whole, tmp_path):
    with killed_at("fedbary.runs.run_folder.RunFolder.finish"):
        run_inline(settings(), tmp_path / "run")
    run_inline(settings(resume="last", pictures=True), tmp_path / "run")
    assert same_result(tmp_path / "run", whole)
    assert (tmp_path / "run" / "reliability.png").exists()


def damage(file):
    """Change one bit; tests/runs/test_tensors_checked and test_run_folder change any."""
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_is_named_and_the_previous_one_serves(whole, tmp_path):
    folder = tmp_path / "run"
    cut_off(folder, 2 * (TRAINING + 3))
    damage(folder / "checkpoint-0002.safetensors")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(SettingError, match=r"checkpoint-0002.*resume=previous, round 1"):
        run_inline(settings(resume="last"), folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    run_inline(settings(resume="previous"), folder)
    assert same_result(folder, whole)


def test_what_cannot_be_resumed_is_said(whole, tmp_path):
    with pytest.raises(SettingError, match="this one has ended"):
        run_inline(settings(resume="last"), whole)
    with pytest.raises(SettingError, match="a previous checkpoint; this one holds 0|settings.yaml"):
        run_inline(settings(resume="previous"), tmp_path / "none")
    with pytest.raises(SettingError, match="the run's folder, with resume=last"):
        run_folder(settings(resume="last"), tmp_path)
    cut_off(tmp_path / "run", 1)
    with pytest.raises(SettingError, match=r"rule: 'WB'; expected 'RKLB', with which"):
        run_inline(settings(resume="last", rule="WB"), tmp_path / "run")
    with pytest.raises(SettingError, match="a previous checkpoint; this one holds 1"):
        run_inline(settings(resume="previous"), tmp_path / "run")


def ended(folder, killed=None, **changes):
    """Run until an error; return it with the metrics and the checkpoint that it leaves.

    Training fails from round 2 on; in round `killed` the server dies.
    """

    def train(message, context):
        server_round = message.content["config"]["server-round"]
        if server_round == killed:
            raise KeyboardInterrupt
        if server_round >= 2:
            raise OSError("the disk is full")
        return client_app.train(message, context)

    with pytest.raises(KeyboardInterrupt if killed else RunError) as error:
        run_with(settings(rounds=7, max_skipped=3, **changes), folder, train=train)
    checkpoint = load_checkpoint(folder, "last")
    strategy = {name: tensor.tolist() for name, tensor in checkpoint.strategy.items()}
    return str(error.value).replace(str(folder), "RUN"), lines(folder), checkpoint.round, strategy


@pytest.mark.parametrize("killed", [2, 3, 4] if NIGHT else [3])
def test_cut_off_among_skipped_rounds_a_run_ends_where_it_would_have_ended(killed, tmp_path):
    uninterrupted = ended(tmp_path / "whole")
    assert uninterrupted[0].startswith("3 rounds in a row were skipped; round 4: ")
    ended(tmp_path / "run", killed)
    assert ended(tmp_path / "run", resume="last") == uninterrupted
    assert ended(tmp_path / "run", resume="last") == uninterrupted
    assert ended(tmp_path / "run", resume="previous") == uninterrupted
    chosen = settings(rounds=7, max_skipped=5, resume="last")
    run_inline(chosen, tmp_path / "run")
    assert [line["skipped"] for line in lines(tmp_path / "run")[5:]] == [False] * 3


def test_a_checkpoint_is_read_as_it_was_written_and_two_are_kept(tmp_path):
    written = [
        Checkpoint(
            n, "a", "b", {"a_mean": torch.randn(2, 3), "n": torch.tensor(n)}, {"v": torch.randn(4)}
        )
        for n in range(4)
    ]
    for checkpoint in written:
        save_checkpoint(tmp_path, checkpoint)
    kept = {file.name for file in tmp_path.iterdir()}
    assert kept == {"checkpoint-0002.safetensors", "checkpoint-0003.safetensors"}
    for which, expected in (("last", written[3]), ("previous", written[2])):
        read = load_checkpoint(tmp_path, which)
        assert (read.round, read.settings, read.metrics) == (expected.round, "a", "b")
        for part in ("arrays", "strategy"):
            assert same(getattr(read, part), getattr(expected, part))


def test_a_half_written_checkpoint_does_not_count(tmp_path):
    save_checkpoint(tmp_path, Checkpoint(1, "a", "b", {"a": torch.ones(2)}, {}))
    (tmp_path / "checkpoint-0002.safetensors.partial").write_bytes(b"half")
    assert load_checkpoint(tmp_path, "last").round == 1


def test_killed_before_the_first_checkpoint_the_same_words_begin_the_run(whole, tmp_path):
    saving = "fedbary.runs.run_folder.save_checkpoint"
    for place in (saving, "fedbary.server_app.recorder.Recorder.__init__"):
        folder = tmp_path / place
        with killed_at(place):
            run_inline(settings(resume="last"), folder)
        assert (folder / "settings.yaml").exists()
        run_inline(settings(resume="last"), folder)
        assert same_result(folder, whole)


def test_killed_again_after_going_on_from_the_previous_checkpoint(whole, tmp_path):
    folder = tmp_path / "run"
    cut_off(folder, 2 * (TRAINING + 3))
    damage(folder / "checkpoint-0002.safetensors")
    cut_off(folder, 1, resume="previous")
    run_inline(settings(resume="last"), folder)
    assert same_result(folder, whole)


def test_a_checkpoint_is_written_without_a_copy_of_the_model(tmp_path):
    program = """
import pathlib, sys, torch
from fedbary.runs.checkpoints import Checkpoint, save_checkpoint

def checkpoint(n):
    return Checkpoint(0, "", "", {"w_mean": torch.ones(n)}, {"w_log_var": torch.ones(n)})

def resident(field):
    status = pathlib.Path("/proc/self/status").read_text().split()
    return int(status[status.index(field) + 1]) / 1024

save_checkpoint(pathlib.Path(sys.argv[1]), checkpoint(1))
held = checkpoint(2**24)  # 128 MiB
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS:")
save_checkpoint(pathlib.Path(sys.argv[1]), held)
print(resident("VmHWM:") - before)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    assert float(ended.stdout) < 16
