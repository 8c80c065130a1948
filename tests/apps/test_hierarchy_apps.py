"""A run with groups keeps both levels, scores both, and each group's model predicts afterwards."""

import numpy as np
import pytest
from runs_of import lines

from fedbary import load
from fedbary.errors import SettingError
from fedbary.methods import require_method
from fedbary.scores.metrics import evaluate, label_share_weights
from fedbary.settings.config import read_yaml, resolve
from server_app.engine.inline import run_inline

QUICK = {
    "engine": "inline", "device": "cpu", "clients": 4, "rounds": 1, "local_epochs": 2,
    "pictures": False, "model": "linear", "rule": "FedAvg", "bayesian_layers": 0,
    "method": "Hierarchy", "groups": "a,a,b,b",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups") / "run"
    run_inline(resolve(QUICK), folder)
    return folder


def test_a_group_s_scores_are_its_clients_mean(folder):
    last = lines(folder)[-1]
    clients = last["held_out"]["clients"]
    assert {g: own["sites"] for g, own in last["groups"].items()} == {
        "a": ["partition 0", "partition 1"],
        "b": ["partition 2", "partition 3"],
    }
    for group, own in (("a", clients[:2]), ("b", clients[2:])):
        weights = [client["num-examples"] for client in own]
        for score in ("accuracy", "nll", "personal-accuracy", "personal-nll"):
            mean = np.average([client[score] for client in own], weights=weights)
            assert last["groups"][group][score] == pytest.approx(mean)


def test_both_levels_are_loaded_and_predict_as_clients_scored_them(folder):
    counts = read_yaml(folder / "settings.yaml")["label_counts"]
    clients = lines(folder)[-1]["held_out"]["clients"]
    for group, prefix in ((None, "share-"), ("a", "personal-share-"), ("b", "personal-share-")):
        trained = load(folder, group=group)
        test = trained.task.evaluation_examples()
        probs = trained.predict(test).probs
        for k in (0, 1) if group == "a" else (2, 3):
            weights = label_share_weights(test.y, counts[k])
            expected = evaluate(probs, test.y, trained.settings.ece_bins, weights)
            found = {score: clients[k][prefix + score] for score in expected}
            assert found == pytest.approx(expected, rel=1e-4)
    with pytest.raises(SettingError, match="group: 'c'; expected a group of this run: a, b"):
        load(folder, group="c")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"groups": "a,b"}, "groups.*each of the 4 clients"),
        ({"groups": 5}, "groups.*at most 4"),
        ({"mode": "async"}, "mode.*rounds for Hierarchy"),
        ({"keep_best": "nll"}, "keep_best.*models of their own"),
    ],
)
def test_settings_that_do_not_fit_groups_are_refused(words, named):
    with pytest.raises(SettingError, match=named):
        require_method(resolve({**QUICK, **words}))
