"""Grids and numbers are the papers', and so is FedAG's toy problem."""

from pathlib import Path

import numpy as np
import torch

from fedbary.predictive import Forecast
from fedbary.study.grid import read_experiment
from findings.published import DATASETS, fedag_published, published, table1
from findings.regression.cubic import cubic_data, cubic_figure

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


def test_cubic_data_are_the_paper_s():
    x, y = cubic_data(10, 5000, seed=0)
    assert x.shape == (10, 5000, 1) and y.shape == (10, 5000)
    assert x.abs().max() <= 4 and abs(x.mean()) < 0.1
    noise = y - x[..., 0] ** 3
    assert abs(noise.std() - 3) < 0.05 and abs(noise.mean()) < 0.05
    again, other = cubic_data(10, 5000, seed=0)[0], cubic_data(10, 5000, seed=1)[0]
    assert torch.equal(x, again) and not torch.equal(x, other)


def test_cubic_figure_shows_what_it_was_given():
    x, y = cubic_data(10, 16, seed=0)
    grid = torch.linspace(-6, 6, 50).double()[:, None]
    forecasts = {
        r: Forecast(r * grid[:, 0], torch.ones(50).double(), 3 * torch.ones(50).double())
        for r in (1, 3, 5)
    }
    figure = cubic_figure(x.flatten(0, 1), y.flatten(), grid, forecasts)
    assert [axes.get_title() for axes in figure.axes] == ["Round 1", "Round 3", "Round 5"]
    for axes, server_round in zip(figure.axes, (1, 3, 5), strict=True):
        truth, mean, points = axes.lines
        assert truth.get_ydata()[0] == -216 and len(points.get_xdata()) == 160
        assert mean.get_ydata()[-1] == 6 * server_round
        low, high = axes.collections[0].get_datalim(axes.transData).intervaly
        assert (low, high) == (-6 * server_round - 6, 6 * server_round + 6)
