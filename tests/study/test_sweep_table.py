"""The table of a sweep: versions, damage, two writers, and what it costs to make a run."""

import os

import pandas as pd
import pytest
import yaml
from refusals import refused

from fedbary.launching.sweep import SweepFolder
from fedbary.settings.config import resolve
from fedbary.study.cost import RuntimeEstimator
from fedbary.study.grid import Experiment
from fedbary.study.table import (
    COMMON,
    FORMAT,
    ROUNDS,
    RUNS,
    find_mismatch,
    joined,
    read_about,
    read_table,
    write_about,
    write_table,
)

PARTS = {"dataset": "digits", "method": "barycentre", "rule": "WB"}


def small_table(tmp_path, **changes):
    table = pd.DataFrame(
        {**PARTS, "format": FORMAT, "run": "a", "rounds": 1, "round": [0, 1], "nll": 0.5}
    )
    write_table(tmp_path, [table.assign(**changes)])
    return tmp_path / RUNS


def test_a_sweep_cut_off_before_its_table_is_said_to_go_on(tmp_path):
    refused("runs.csv, as fedbary sweep fills it, [^;]*$", read_table, tmp_path)
    (tmp_path / "runs").mkdir()
    refused("; repeat the fedbary sweep, which makes it from the runs", read_table, tmp_path)


def test_a_table_of_another_version_is_refused(tmp_path):
    small_table(tmp_path, format=FORMAT + 1)
    refused(rf"format: '{FORMAT + 1}'; expected.*format {FORMAT};", read_table, tmp_path)


@pytest.mark.parametrize("damage", [b"", b"\x00\xff", b"a,b\n1,2\n"])
def test_a_damaged_table_is_refused_and_left_alone(tmp_path, damage):
    file = small_table(tmp_path)
    file.write_bytes(damage)
    refused("move it away", read_table, tmp_path)
    assert file.read_bytes() == damage


def test_a_table_cut_off_is_refused(tmp_path):
    """The rounds within their file, a line of the runs, and the rounds of a run that are gone."""
    file = small_table(tmp_path)
    runs, rounds = file.read_bytes(), (tmp_path / ROUNDS).read_bytes()
    (tmp_path / ROUNDS).write_bytes(rounds[:-9])
    refused(ROUNDS, read_table, tmp_path)
    (tmp_path / ROUNDS).write_bytes(rounds)
    file.write_bytes(runs[:-3])
    refused("its last line is cut off", read_table, tmp_path)
    file.write_bytes(runs + runs.splitlines(keepends=True)[-1].replace(b"a", b"b", 1))
    refused(f"{ROUNDS} lacks b", read_table, tmp_path)


def test_what_is_the_same_in_all_runs_is_written_once(tmp_path):
    """Two runs of other settings and scores, of which one has no label counts."""
    frames = []
    for run, key in (("a", "lr"), ("b", "mu")):
        fixed = {**PARTS, "format": FORMAT, "run": run, key: 0.125, "rounds": 1, "commit": "c"}
        measured = {"round": [0, 1], f"{key}_score": [0.5, 7], "skipped": [None, False]}
        frames.append(pd.DataFrame({**fixed, "versions.torch": 2, **measured}))
    frames[0]["label_counts"] = ["[[1, 2]]", None]
    write_table(tmp_path, frames)
    runs, common = ((tmp_path / name).read_text().splitlines() for name in (RUNS, COMMON))
    assert runs == ["run,lr,mu", "a,0.125,", "b,,0.125"]
    names, values = ",".join(PARTS), ",".join(PARTS.values())
    assert common == [
        f"run,{names},format,lr,rounds,mu,commit,versions.torch", f",{values},{FORMAT},,1,,c,2"
    ]  # fmt: skip
    table = read_table(tmp_path)
    assert table["lr_score"].tolist()[:2] == table["mu_score"].tolist()[2:] == [0.5, 7]
    write_table(tmp_path, [table])
    pd.testing.assert_frame_equal(read_table(tmp_path), table)


def test_a_write_cut_off_before_what_is_common_leaves_a_whole_table(tmp_path):
    frames = [
        pd.DataFrame(
            {**PARTS, "format": FORMAT, "run": run, "lr": lr, "rounds": 1, "round": [0, 1]}
        )
        for run, lr in (("a", 0.5), ("b", 0.25))
    ]
    write_table(tmp_path, frames[:1])
    before = (tmp_path / COMMON).read_bytes()
    write_table(tmp_path, frames)
    (tmp_path / COMMON).write_bytes(before)
    pd.testing.assert_frame_equal(read_table(tmp_path)[list(frames[0])], joined(frames))


def test_two_sweeps_of_a_folder_keep_each_others_runs(tmp_path):
    nothing = Experiment("T", "", {})
    first, second = (SweepFolder.open(tmp_path, nothing) for _ in range(2))
    for results, name in ((first, "a"), (second, "b")):
        results.done[name] = pd.DataFrame(
            {**PARTS, "format": FORMAT, "run": name, "rounds": 1, "round": [0, 1], "nll": 0.5}
        )
        results.write()
    assert set(read_table(tmp_path)["run"]) == {"a", "b"}


def test_numbers_that_the_table_rounds_are_still_the_same_setting():
    rows = pd.DataFrame({"lr": [0.0333333], "rule": ["WB"], "download": [True], "pixels": [None]})
    same = {"lr": 1 / 30, "rule": "WB", "download": True, "pixels": "unit", "newer": 1}
    assert find_mismatch(rows, same) is None
    assert find_mismatch(rows, {**same, "lr": 0.0334}) == "lr"
    assert find_mismatch(rows, {**same, "rule": "EAA"}) == "rule"


def test_an_interrupted_write_leaves_the_old_table(tmp_path, monkeypatch):
    file = small_table(tmp_path)
    before = file.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        small_table(tmp_path, nll=0.1)
    assert file.read_bytes() == before


def test_the_time_of_a_run_without_data_is_unknown(tmp_path):
    settings = resolve({"dataset": "svhn", "data_dir": str(tmp_path)})
    assert RuntimeEstimator([]).seconds(settings) is None


@pytest.mark.parametrize("title", ["What the grid says", "Another"])
def test_what_an_experiment_is_called_is_written_once(title, tmp_path):
    told = {"title": title, "about": "Words\n  of two lines"}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({**told, "grid": []}))
    write_about(tmp_path, "What the grid says", "Words of two lines")
    assert (tmp_path / "about.yaml").exists() == (title == "Another")
    assert read_about(tmp_path)["title"] == "What the grid says"
