"""Grids and numbers are the papers'."""

from pathlib import Path

import numpy as np

from fedbary.study.grid import read_experiment
from findings.published import DATASETS, fedag_published, published, table1

ROOT = Path(__file__).resolve().parents[2]


def test_the_grid_is_the_paper_s_on_the_sets_at_hand():
    runs = read_experiment(ROOT / "findings" / "regression" / "grid.yaml", {}, {}).runs.values()
    fedag = [run for run in runs if run.method == "FedAG"]
    assert {(run.clients, run.participation, run.batch_size) for run in fedag} == {(10, 1.0, 1)}
    assert {(run.model, run.rounds) for run in fedag} == {("linear", 1), ("mlp", 5)}
    for run in runs:
        protein = run.dataset.startswith("uci/protein")
        assert run.split < (5 if protein else 20)
        assert run.model == "linear" or run.hidden_units == (100 if protein else 50)
    assert {Path(run.dataset).name for run in runs} - {"diabetes"} <= DATASETS.keys()


def test_numbers_of_the_paper_are_found():
    assert fedag_published("bostonHousing", "FedAG-N1-t5", "nll") == (2.58, 0.06)
    assert fedag_published("yacht", "DE", "nll") == (1.18, 0.21)


def test_the_papers_numbers_are_at_hand():
    assert published("fashionmnist", 0, "FedAvg", "accuracy") == (87.88, 0.79)
    assert published("cifar10", 3, "RKLB", "nll")[0] == 1.00
    assert published("cifar10", 3, "pFedVem", "nll") == (2.44, 0.10)
    assert np.isnan(published("cifar10", 3, "PVI", "nll")[0])
    assert np.isnan(published("digits", 0, "FedAvg", "nll")[0])
    assert len(table1()) == 3 * 3 * (1 + 5 * 3)
