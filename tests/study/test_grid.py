"""A grid file becomes named runs, and a mistake in it is told with its place."""

from pathlib import Path

import pytest
import yaml
from refusals import refused

from fedbary.errors import SettingError
from fedbary.study.grid import read_experiment

FINDINGS = Path(__file__).resolve().parents[2] / "findings"


def read(tmp_path, content, overrides=None, only=None):
    file = tmp_path / "grid.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return read_experiment(file, overrides or {}, only or {})


GRID = {
    "title": "T",
    "settings": {"protocol": "short", "rounds": 2},
    "grid": [
        {"rule": "FedAvg", "bayesian_layers": 0, "seed": [0, 1]},
        {"rule": ["RKLB", "WB"], "bayesian_layers": [1, 3], "seed": [0, 1]},
    ],
}


def test_table1_is_the_papers_grid():
    file = FINDINGS / "protocol" / "grid.yaml"
    runs = read_experiment(file, {}, {}).runs.values()
    assert len(runs) == 3 * 3 * (1 + 5 * 3)
    assert {(s.rounds, s.local_epochs) for s in runs} == {(50, 50)}
    assert {s.bayesian_layers for s in runs if s.rule == "FedAvg"} == {0}


def test_a_grid_is_the_product_of_each_block_in_order(tmp_path):
    runs = read(tmp_path, GRID).runs
    assert list(runs)[:4] == [
        "digits-FedAvg-n0-seed0",
        "digits-FedAvg-n0-seed1",
        "digits-RKLB-n1-seed0",
        "digits-RKLB-n1-seed1",
    ]
    assert len(runs) == 2 + 8
    assert all(s.rounds == 2 and s.local_epochs == 5 for s in runs.values())


def test_settings_that_tell_runs_apart_are_in_their_names(tmp_path):
    grid = {**GRID, "grid": [{"rule": "WB", "kl_weight": [0.1, 1], "prior": ["normal", "global"]}]}
    names = list(read(tmp_path, grid).runs)
    assert names[1] == "digits-WB-n3-prior=global-kl_weight=0.1-seed0"
    assert len(set(names)) == 4


@pytest.mark.parametrize(
    ("block", "names"),
    [
        ({"method": ["PVI", "barycentre"]}, ["digits-PVI-n3-seed0", "digits-RKLB-n3-seed0"]),
        (
            {"method": "PVI", "damping": [0.1, 0.05]},
            ["digits-PVI-n3-damping=0.1-seed0", "digits-PVI-n3-damping=0.05-seed0"],
        ),
        (
            {"model": ["resnet20", "cnn"]},
            ["digits-RKLB-n3-model=resnet20-seed0", "digits-RKLB-n3-model=cnn-seed0"],
        ),
    ],
)
@pytest.mark.parametrize("turn", [1, -1])
def test_methods_and_networks_with_parameters_of_their_own_are_swept(tmp_path, block, names, turn):
    turned = {key: v[::turn] if isinstance(v, list) else v for key, v in block.items()}
    runs = read(tmp_path, {**GRID, "grid": [turned]}).runs
    assert list(runs) == names[::turn]


def test_only_takes_a_parameter_of_a_method_and_methods_for_rules(tmp_path):
    blocks = [{"method": "PVI", "damping": [0.1, 0.05]}, {"rule": ["RKLB", "WB"]}]
    grid = {**GRID, "grid": blocks}
    assert list(read(tmp_path, grid, only={"damping": ["1e-1"]}).runs) == [
        "digits-PVI-n3-damping=0.1-seed0"
    ]
    assert list(read(tmp_path, grid, only={"rule": ["RKLB"]}).runs) == ["digits-RKLB-n3-seed0"]
    assert len(read(tmp_path, grid, only={"rule": ["PVI", "WB"]}).runs) == 3
    refused(r"'damping=0\.3'.*damping=0\.1,0\.05", read, tmp_path, grid, only={"damping": ["0.3"]})


def test_two_data_sets_of_one_name_are_refused(tmp_path):
    grid = {**GRID, "grid": [{"rule": "WB", "dataset": ["a/mine.npz", "/b/mine.npz", "digits"]}]}
    refused(r"mine\.npz.*different names", read, tmp_path, grid)


def test_the_command_line_goes_over_the_file_and_can_take_a_part(tmp_path):
    assert {s.rounds for s in read(tmp_path, GRID, {"rounds": 7}).runs.values()} == {7}
    part = read(
        tmp_path, GRID, only={"kl_weight": ["1e-3"], "rule": ["WB"], "bayesian_layers": ["0", "3"]}
    ).runs
    assert list(part) == ["digits-WB-n3-seed0", "digits-WB-n3-seed1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"grid": [{"seed": []}]}, ["block 1: seed: []", "at least one"]),
        ({"grid": [{"method": [["PVI"]]}]}, ["block 1: method: ['PVI']", "a text"]),
        ({"grid": [{"rule": ["RKLB", "WASSERSTEIN"]}]}, ["block 1", "rule", "WASSERSTEIN", "WB"]),
        ({"grid": [{"rule": "WB"}, {"rulez": "WB"}]}, ["block 2", "rulez", "rule"]),
        ({"grid": [{"rule": "WB"}, {"rule": ["WB"]}]}, ["digits-WB-n3-seed0", "once"]),
        ({"grid": [{"rule": ["RKLB", "WB"], "trim_fraction": 0.1}]}, ["block 1: trim_fraction"]),
        (
            {"grid": [{"rule": ["RKLB", "TrimmedMean"], "trim_fraction": [0.1, 0.2]}]},
            ["block 1: trim_fraction", "RKLB"],
        ),
        ({"grid": [{"method": ["PVI", "barycentre"], "rule": ["WB", "EAA"]}]}, ["rule", "PVI"]),
        ({"grid": [{"seed": 1}, {"method": "FedPA", "kl_weight": 3}]}, ["block 2: kl_weight"]),
        ({"grid": [{"specificity": 0.9}]}, ["specificity", "task=classification"]),
        ({"grid": []}, ["grid", "list of blocks"]),
        ({"grid": {"rule": "WB"}}, ["grid", "list of blocks"]),
        ({"settings": "protocol"}, ["settings", "key: value"]),
        ({"rules": ["WB"]}, ["unknown key", "rules", "grid"]),
    ],
)
def test_a_mistake_names_the_file_and_the_place(tmp_path, change, said):
    with pytest.raises(SettingError) as caught:
        read(tmp_path, {**GRID, **change})
    assert all(part in str(caught.value) for part in ["grid.yaml", *said]), caught.value


def test_what_a_part_of_the_runs_uses_may_be_named_for_all(tmp_path):
    block = {"rule": ["RKLB", "TrimmedMean"], "trim_fraction": 0.1}
    assert len(read(tmp_path, {**GRID, "grid": [block]}).runs) == 2
    common = {**GRID["settings"], "trim_fraction": 0.1}
    assert len(read(tmp_path, {**GRID, "settings": common}).runs) == 10
    refused("^trim_fraction: .*does not use it", read, tmp_path, GRID, {"trim_fraction": 0.1})
    grid = {**GRID, "grid": [{"rule": ["RKLB", "TrimmedMean"]}]}
    assert {
        s.trim_fraction for s in read(tmp_path, grid, {"trim_fraction": 0.1}).runs.values()
    } == {0.1}


def test_what_cannot_be_taken_from_the_command_line(tmp_path):
    refused("--only seed", read, tmp_path, GRID, {"seed": 1})
    refused("--only: 'rule=EAA'.*FedAvg,RKLB,WB", read, tmp_path, GRID, only={"rule": ["EAA"]})
    refused("'rulle'", read, tmp_path, GRID, only={"rulle": ["WB"]})
    refused("absent", read_experiment, tmp_path / "absent.yaml", {}, {})
