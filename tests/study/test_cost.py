"""What a run will take, from like runs."""

from pathlib import Path

import pytest

from fedbary.settings.config import completed
from fedbary.study.cost import START_SECONDS, RuntimeEstimator
from fedbary.study.table import read_table

RESULTS = Path(__file__).resolve().parents[2] / "findings" / "best"


@pytest.fixture(scope="module")
def cost():
    """Of runs that were made before there were methods and parts of the training data."""
    return RuntimeEstimator([rows for _, rows in read_table(RESULTS).groupby("run")])


def of(cost, **changes):
    words = {
        "dataset": "fashionmnist", "protocol": "short", "engine": "inline", "batch_size": 32,
        "pictures": False, "bayesian_layers": 3, "data_dir": "nowhere", "download": False,
    }  # fmt: skip
    seconds = cost.seconds(completed({**words, **changes}))
    return None if seconds is None else seconds - START_SECONDS["inline"]


def test_a_run_like_those_that_are_done_takes_as_long_a_pass(cost):
    table = read_table(RESULTS)
    like = table[(table["dataset"] == "fashionmnist") & (table["bayesian_layers"] == 3)]
    of_a_pass = [
        rows["seconds"].sum() / (rows["local_epochs"] * rows["rounds"]).iloc[0]
        for _, rows in like.groupby("run")
    ]
    found = of(cost, rounds=6, local_epochs=5) / 30
    assert min(of_a_pass) * 0.999 <= found <= max(of_a_pass) * 1.001


@pytest.mark.parametrize(
    ("changes", "part"),
    [({"train_fraction": 0.2}, 0.2), ({"train_fraction": 0.5, "server_fraction": 0.5}, 0.25),
     ({"participation": 0.5}, 0.5)],
)  # fmt: skip
def test_a_part_of_the_data_takes_a_part_of_the_time(cost, changes, part):
    assert of(cost, **changes) == pytest.approx(part * of(cost))


def test_another_method_is_not_taken_to_cost_the_same(cost):
    """Without data to try a few steps on there is no estimate."""
    assert of(cost, method="PVI") is None


def test_batches_of_one_under_a_batch_norm_are_tried_as_they_are_trained(cost):
    """In batches of two: of one a batch norm takes no variance."""
    assert of(cost, dataset="digits", model="resnet20", bayesian_layers=1, batch_size=1) > 0


def test_sites_on_components_of_features_are_tried_on_as_many_features(cost):
    words = {"backbone": "own_backbones:tiny", "features": 2, "normalise": "channels"}
    words |= {"model": "linear", "inference": "laplace", "covariance": "full", "bayesian_layers": 0}
    assert of(cost, dataset="digits", method="PVI", **words) > 0
