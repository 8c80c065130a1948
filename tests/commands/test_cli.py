"""The command line: mistakes end in one line and a non-zero exit, and write nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import psutil
import pytest
from processes import is_free, wait_until

pytestmark = pytest.mark.slow

FEDBARY = str(Path(sys.executable).parent / "fedbary")


def fedbary(*words, cwd):
    return subprocess.run(
        [forked.command(), *words],
        cwd=cwd, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rule=RKBL"], ["rule", "RKBL", "RKLB"]),
        (["rounds=0"], ["rounds", "0", "from 1"]),
        (["absent.yaml"], ["absent.yaml"]),
        (["dataset=mine.npz"], ["mine.npz"]),
        (["dataset=fashionmnist", "data_dir=empty", "download=false"], ["fashionmnist", "empty"]),
        (["min_examples=1000"], ["min_examples", "1000"]),
        (["partition=classes", "classes_per_client=11"], ["classes_per_client", "11"]),
        (["output=/"], ["output", "does not exist"]),
        (["output=/dev/null/run"], ["output", "/dev/null/run", "can be written"]),
        (["output=/proc/run"], ["output", "/proc/run", "can be written"]),
        (["dataset=none"], ["classes", "auto"]),
        (["dataset=none", "classes=2", "input_shape=1x8x8"], ["dataset", "--site"]),
        (["input_shape=1x9x9"], ["input_shape", "1x8x8"]),
        (["classes=3"], ["classes", "10"]),
        (["resume=last"], ["output", "resume=last"]),
        (["resume=previous", "output=gone"], ["gone", "settings.yaml"]),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_writes_nothing(tmp_path, words, said):
    complains(tmp_path, ["simulate", *words], said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resume", "gone"], ["gone", "settings.yaml"]),
        (["deploy", "rule=RKBL"], ["rule", "RKBL", "RKLB"]),
        (["deploy", "--site", "gone.npz"], ["--site", "gone.npz"]),
        (["deploy", "--site", "gone.npz", "clients=3"], ["clients", "'3'", "1 --site"]),
        (["simulat"], ["'simulat'", "'simulate'", "fedbary --help"]),
        (["deploy", "--sites", "a"], ["'--sites'", "'--site'", "fedbary deploy --help"]),
        (["predict", "run"], ["'DATA'", "fedbary predict --help"]),
        (["predict", "a", "b", "--samples", "-1"], ["'--samples'", "-1", "x>=0"]),
        (["predict", "a", "b", "--held-out", "c"], ["--held-out", "--error-rate"]),
        (["deploy", "dataset=none", "classes=2", "input_shape=1x8x8"], ["dataset", "--site"]),
    ],
)
def test_so_is_one_of_the_other_commands(tmp_path, words, said):
    complains(tmp_path, words, said)


def complains(tmp_path, words, said):
    done = fedbary(*words, cwd=tmp_path)
    assert done.returncode == 2
    slow = "takes a while\n"  # on a busy machine what is done is said before it is checked
    assert done.stdout == "" or done.stdout.endswith(slow) and done.stdout.count("\n") == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert all(part in lines[0] for part in said), lines[0]
    assert list(tmp_path.iterdir()) == []


def test_an_own_npz_runs_and_a_second_run_does_not_overwrite_it(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 90)
    images = rng.integers(0, 60, (90, 9, 9), dtype=np.uint8)
    images[np.arange(90), labels * 3] += 150
    np.savez(
        tmp_path / "mine.npz",
        x_train=images[:60], y_train=labels[:60], x_test=images[60:], y_test=labels[60:],
    )  # fmt: skip
    words = ["simulate", "dataset=mine.npz", "engine=inline", "clients=2", "output=out"]
    words += ["protocol=short", "rounds=1", "local_epochs=1", "min_examples=2"]
    first = fedbary(*words, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip().endswith(str(tmp_path / "out"))
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 2
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    second = fedbary(*words, cwd=tmp_path)
    assert second.returncode == 2
    assert "output" in second.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before

    again = fedbary("resume", "out", cwd=tmp_path)
    assert again.returncode == 2 and "this one has ended" in again.stderr


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_simulation_that_is_stopped_says_in_one_line_how_to_go_on(tmp_path, sent):
    """Ctrl-C reaches all processes of a terminal; SIGTERM one alone, which has children here."""
    words = ["simulate", "engine=inline", "clients=2", "rounds=400", "local_epochs=1", "output=run"]
    command = forked.command() if sent == signal.SIGINT else FEDBARY
    with open(tmp_path / "said", "w") as said:
        process = psutil.Popen(
            [command, *words], cwd=tmp_path, stdout=said, stderr=said, start_new_session=True
        )
    wait_until((tmp_path / "run" / "checkpoint-0001.safetensors").exists, alive=process)
    children = process.children(recursive=True)
    os.killpg(process.pid, sent) if sent == signal.SIGINT else process.send_signal(sent)
    assert process.wait(120) == 130
    assert command != FEDBARY or children
    assert not any(child.is_running() for child in children)
    wait_until(lambda: is_free(tmp_path / "run"), 20)
    said = (tmp_path / "said").read_text()
    go_on = f"fedbary resume {tmp_path / 'run'} goes on from the last whole round"
    assert said.splitlines()[-1] == f"fedbary: stopped; {go_on}"
    assert "Traceback" not in said and "KeyboardInterrupt" not in said
