"""What a table says of a run's rounds beside what is measured of its model."""

import pytest

from fedbary.settings.config import resolve
from fedbary.study.table import read_run
from server_app.inline import run_inline

UNMOVED = {
    "dataset": "digits",
    "rule": "FedAvg",
    "bayesian_layers": 0,
    "holdout": 0.0,
    "lr": 1e-12,
    "rounds": 1,
    "local_epochs": 1,
    "engine": "inline",
    "pictures": False,
}


def test_the_training_nll_is_the_mean_over_all_examples_whoever_holds_them(tmp_path):
    found = []
    for clients in (1, 4):
        folder = tmp_path / str(clients)
        run_inline(resolve({**UNMOVED, "clients": clients, "alpha": 0.1}), folder)
        table = read_run("run", folder).set_index("round")
        assert table["train_nll"].isna()[0]
        found.append(table["train_nll"][1])
    assert found[1] == pytest.approx(found[0], rel=1e-5)
