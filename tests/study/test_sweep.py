"""A sweep goes on where it stopped, past what fails, and loses nothing. Runs are real ones."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import psutil
import pytest
import yaml
from every_method import NIGHT, night
from processes import wait_until

from fedbary.settings.config import resolve
from fedbary.study.cost import RuntimeEstimator
from fedbary.study.table import (
    COMMON,
    FORMAT,
    ROUNDS,
    RUNS,
    lacking_of,
    read_run,
    read_table,
    write_table,
)

FEDBARY = str(Path(sys.executable).parent / "fedbary")
QUICK = {
    "protocol": "short", "engine": "inline", "clients": 3, "rounds": 2, "local_epochs": 1,
    "pictures": False, "samples": 3, "evaluate_clients": 2, "ood_dataset": "digits",
}  # fmt: skip


def grid_file(folder, blocks, **settings):
    file = folder / "tiny.yaml"
    content = {"title": "Tiny", "about": "Text.", "settings": {**QUICK, **settings}, "grid": blocks}
    file.write_text(yaml.safe_dump(content))
    return file


def fedbary(*words, cwd, **kwargs):
    return subprocess.run(
        [forked.command(), *map(str, words)],
        cwd=cwd, capture_output=True, text=True, timeout=300, check=False, **kwargs,
    )  # fmt: skip


BLOCKS = [
    {"rule": "FedAvg", "bayesian_layers": 0, "seed": 0},
    {"rule": "WB", "bayesian_layers": 2, "seed": 0, "min_examples": [10, 1000]},
]
GOOD, FAILS = "digits-WB-n2-min_examples=10-seed0", "digits-WB-n2-min_examples=1000-seed0"


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A results folder of two runs that ended and one that cannot start."""
    folder = tmp_path_factory.mktemp("sweep")
    done = fedbary("sweep", grid_file(folder, BLOCKS), "--results", "out", cwd=folder)
    return folder, done


@pytest.mark.slow
def test_it_goes_on_past_a_failure_and_says_which(swept):
    folder, done = swept
    assert done.returncode == 1
    assert f"failed: {FAILS}: clients: 3" in done.stdout
    lacking = lacking_of(folder / "out", read_table(folder / "out"))
    assert lacking.keys() == {FAILS} and "clients: 3" in lacking[FAILS]
    assert done.stderr.strip().splitlines()[-1].startswith("fedbary: 1 of 3 runs failed")
    assert set(read_table(folder / "out")["run"]) == {"digits-FedAvg-n0-seed0", GOOD}


@pytest.mark.slow
def test_a_table_that_cannot_be_written_hides_no_failure_and_loses_no_run(tmp_path):
    (tmp_path / "out" / ROUNDS / "in the way").mkdir(parents=True)
    words = ["sweep", grid_file(tmp_path, BLOCKS), "--results", "out"]
    done = fedbary(*words, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    failed = {s.split(": ")[1]: s for s in done.stdout.splitlines() if s.startswith("failed: ")}
    assert failed.keys() == {GOOD, FAILS, "digits-FedAvg-n0-seed0"}
    assert ROUNDS in failed[GOOD] and "clients: 3" in failed[FAILS]
    assert done.stderr.strip().splitlines()[-1].startswith("fedbary: 3 of 3 runs failed")
    (tmp_path / "out" / ROUNDS / "in the way").rmdir()
    (tmp_path / "out" / ROUNDS).rmdir()
    done = fedbary(*words, "--only", "rule=FedAvg", cwd=tmp_path)
    assert done.returncode == 0 and "1 of 1 runs are done" in done.stdout


@pytest.mark.slow
def test_the_table_has_a_row_per_run_and_round_with_what_was_measured(swept):
    folder, _ = swept
    table = read_table(folder / "out")
    assert len(table) == 2 * 3 and set(table["format"]) == {FORMAT}
    lines = (folder / "out" / "runs" / GOOD / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    row = table[(table["run"] == GOOD) & (table["round"] == 2)].iloc[0]
    assert row["accuracy"] == pytest.approx(last["accuracy"], rel=1e-5)
    assert row["local_models.worst10_accuracy"] == pytest.approx(
        last["local_models"]["worst10_accuracy"], rel=1e-5
    )
    assert row["rejection.0.0"] == pytest.approx(last["accuracy"], rel=1e-5)
    assert row["ood.auroc_entropy"] == pytest.approx(0.5)  # the foreign images are its own
    assert row["log_var_spread.fc3.weight"] > 0
    assert row["uncertainty.entropy"] == pytest.approx(
        row["uncertainty.aleatoric"] + row["uncertainty.epistemic"], abs=1e-4
    )
    counts = json.loads(
        table[(table["run"] == GOOD) & (table["round"] == 0)]["label_counts"].iloc[0]
    )
    assert (len(counts), len(counts[0])) == (3, 10)
    assert "output" not in table and "data_dir" not in table
    assert all(str(folder) not in (folder / "out" / name).read_text() for name in (COMMON, RUNS))


@pytest.mark.slow
def test_what_is_done_is_skipped_even_when_only_the_table_is_left(swept, tmp_path):
    folder, _ = swept
    (tmp_path / "out").mkdir()
    files = [tmp_path / "out" / name for name in (COMMON, RUNS, ROUNDS)]
    for file in files:
        file.write_bytes((folder / "out" / file.name).read_bytes())
    before = [file.read_bytes() for file in files]
    file = grid_file(tmp_path, BLOCKS[:1])
    done = fedbary("sweep", file, "--results", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 runs are done" in done.stdout
    assert not (tmp_path / "out" / "runs").exists()
    assert [file.read_bytes() for file in files] == before


@pytest.mark.slow
def test_other_settings_under_the_same_name_are_refused(swept):
    folder, _ = swept
    file = grid_file(folder, BLOCKS[:1])
    before = (folder / "out" / RUNS).read_bytes()
    done = fedbary("sweep", file, "lr=0.5", "--results", "out", cwd=folder)
    assert done.returncode == 2
    assert all(word in done.stderr for word in ("lr", "0.5", "0.01", "digits-FedAvg-n0-seed0"))
    assert (folder / "out" / RUNS).read_bytes() == before


@pytest.mark.slow
def test_a_setting_that_is_newer_than_a_run_does_not_undo_it(swept, tmp_path):
    folder, _ = swept
    (tmp_path / "out").mkdir()
    table = read_table(folder / "out")
    table.loc[table["rule"] == "FedAvg", "momentum"] = None
    write_table(tmp_path / "out", [table.drop(columns="pixels")])
    file = grid_file(tmp_path, BLOCKS[:1])
    done = fedbary("sweep", file, "--results", "out", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0 of 1 runs to do" in done.stdout


@pytest.mark.slow
def test_a_dry_run_lists_the_runs_and_writes_nothing(swept, tmp_path):
    folder, _ = swept
    file = grid_file(tmp_path, BLOCKS)
    listed = fedbary("sweep", file, "--results", folder / "out", "--dry-run", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    states = {
        line.split("│")[1].strip(): line for line in listed.stdout.splitlines() if "│" in line
    }
    assert "done" in states[GOOD] and "to do" in states[FAILS]
    assert "1 of 3 runs to do" in listed.stdout
    fresh = fedbary("sweep", file, "--dry-run", cwd=tmp_path)
    assert "3 of 3 runs to do" in fresh.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml"}


STOPS = {
    "Ctrl-C": [signal.SIGINT],
    "Ctrl-C twice": [signal.SIGINT, signal.SIGINT],
    "SIGTERM": [signal.SIGTERM],
    "SIGTERM twice": [signal.SIGTERM, signal.SIGTERM],
    "a closed terminal": [signal.SIGHUP],
}
SEEDS = [{"rule": "WB", "bayesian_layers": 1, "seed": [0, 1, 2]}]


def started_sweep(folder, file, jobs):
    """A sweep of which a run has written a round, this run, and the sweep's processes."""
    with open(folder / "sweep.log", "w") as log:
        process = subprocess.Popen(
            [FEDBARY, "sweep", str(file), "--results", "out", "--jobs", str(jobs)],
            cwd=folder, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    begun, *_ = wait_until(lambda: list(folder.glob("out/runs/*/metrics.jsonl")), alive=process)
    return process, begun.parent, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "jobs"),
    [*((how, 1) for how in STOPS), ("Ctrl-C twice", 2)] if NIGHT else [("Ctrl-C twice", 1)],
)
def test_a_sweep_that_is_stopped_ends_soon_and_whole_and_goes_on(tmp_path, how, jobs):
    file = grid_file(tmp_path, SEEDS, rounds=400)
    process, begun, children = started_sweep(tmp_path, file, jobs)
    for number in STOPS[how]:
        if "Ctrl-C" in how:
            os.killpg(process.pid, number)  # as a terminal sends it
        else:
            process.send_signal(number)
        time.sleep(0.2)
    assert process.wait(120) == 130
    assert len((begun / "metrics.jsonl").read_text().splitlines()) < 400
    assert children and wait_until(lambda: all(map(has_ended, children)), 10)
    said = (tmp_path / "sweep.log").read_text().splitlines()
    assert said[-1] == "fedbary: stopped; repeat the command to continue"
    assert not any("Traceback" in line for line in said)

    grid_file(tmp_path, SEEDS, rounds=1)
    again = fedbary("sweep", file, "--results", "out", "--jobs", str(jobs), cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert begun.with_name(f"{begun.name}.interrupted-1").joinpath("metrics.jsonl").exists()
    table = read_table(tmp_path / "out")
    assert table["run"].nunique() == 3 and table["round"].max() == 1


def has_ended(process):
    """Whether a process has ended, even if nobody has asked for its exit code."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def watcher_of(process):
    """The process that ends what a command has started."""
    for other in psutil.process_iter(["cmdline"]):
        words = other.info["cmdline"] or [""]
        if "fedbary.launching.watcher" in words and words[-1].startswith(f"{process.pid}-"):
            return other
    raise AssertionError("no watcher")


@night  # by day what is started bears the mark by which it ends, tests/launching/test_watcher
@pytest.mark.slow
@pytest.mark.parametrize("watched", [pytest.param(True, marks=night), False])
def test_the_runs_of_a_killed_sweep_end_with_it_or_are_not_started_beside_themselves(
    tmp_path, watched
):
    file = grid_file(tmp_path, [{**SEEDS[0], "seed": 0}], rounds=400)
    process, begun, children = started_sweep(tmp_path, file, 1)
    watcher = watcher_of(process)
    if not watched:
        watcher.kill()
    process.kill()
    process.wait()
    if not watched:
        refused = fedbary("sweep", file, "--results", "out", cwd=tmp_path)
        assert refused.returncode == 1 and "is being written by process" in refused.stdout
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    wait_until(lambda: all(map(has_ended, [*children, watcher])), 30)
    assert len((begun / "metrics.jsonl").read_text().splitlines()) < 400
    grid_file(tmp_path, [{**SEEDS[0], "seed": 0}], rounds=1)
    again = fedbary("sweep", file, "--results", "out", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.slow
def test_the_time_of_a_run_is_taken_from_like_runs(swept):
    folder, _ = swept
    rows = read_run(GOOD, folder / "out" / "runs" / GOOD)
    cost = RuntimeEstimator([rows.assign(seconds=30.0)])
    like = resolve({**QUICK, "rule": "RKLB", "bayesian_layers": 2})
    longer = like.model_copy(update={"rounds": 4})
    assert cost.seconds(longer) - cost.seconds(like) == pytest.approx(90.0)
