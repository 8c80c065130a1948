"""Networks other than the CNN through the two apps: ResNet-20, and a user's own with batch norm."""

import pytest
import torch
from runs_of import lines as lines_of
from runs_of import network
from runs_of import posterior as posterior_of

from fedbary import predict
from fedbary.errors import SettingError
from fedbary.scores.metrics import evaluate
from fedbary.seeds import derive_seed
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from fedbary.variational.layers import gaussian_layers

OWN = "own_models:normed"


def ran(folder, **changes):
    quick = {
        "engine": "inline",
        "pictures": False,
        "clients": 2,
        "samples": 2,
        "device": "cpu",
        "holdout": 0.0,
        "normalise": "none",
    }
    chosen = resolve({**quick, "rounds": 2, "local_epochs": 1, **changes})
    run_inline(chosen, folder)
    return chosen, lines_of(folder), posterior_of(folder)


def scores_again(chosen, state):
    """Score a run's final posterior as the server does, from the file alone."""
    model = network(chosen)
    model.load_state_dict(state)
    x, y = task_of(chosen).scored_by_clients({})
    seed = derive_seed(chosen.seed, "predict-global", chosen.rounds)
    return evaluate(predict(model, x, chosen.samples, seed=seed).probs, y, chosen.ece_bins)


@pytest.mark.parametrize("inference", ["variational", "ivon"])
def test_batch_norm_of_ones_own_network_trains_and_is_averaged(tmp_path, inference):
    chosen, lines, posterior = ran(
        tmp_path / "run", model=OWN, bayesian_layers=2, inference=inference, evaluate_clients=0
    )
    assert [line["admitted"] for line in lines[1:]] == [2, 2]
    start = network(chosen).state_dict()
    assert posterior.keys() == start.keys()
    assert set(gaussian_layers(network(chosen))) == {"0", "6"}
    for name in ("0.weight_mean", "1.weight", "1.running_mean", "1.running_var", "6.weight_mean"):
        assert torch.isfinite(posterior[name]).all()
        assert not torch.equal(posterior[name], start[name])
    assert lines[-1]["nll"] < lines[0]["nll"]


def test_scoring_uses_the_running_moments_and_changes_none(tmp_path):
    """The recorded scores are those of the written posterior in evaluation mode, image by image."""
    chosen, lines, posterior = ran(tmp_path / "run", model=OWN, bayesian_layers=1)
    again = scores_again(chosen, posterior)
    assert lines[-1]["nll"] == pytest.approx(again["nll"], rel=1e-6)
    quiet = ran(tmp_path / "quiet", model=OWN, bayesian_layers=1, evaluate_clients=0, samples=5)
    assert all(torch.equal(posterior[name], quiet[2][name]) for name in posterior)


def test_resnet20_trains_with_gaussian_layers(tmp_path):
    chosen, lines, posterior = ran(
        tmp_path / "run", model="resnet20", bayesian_layers=3, batch_size=64, lr=0.05,
        evaluate_clients=0,
    )  # fmt: skip
    assert [line["admitted"] for line in lines[1:]] == [2, 2]
    gaussian = {name for name in posterior if name.endswith("_log_var")}
    blocks = {f"block3_3.conv{i}.weight_log_var" for i in (1, 2)}
    assert gaussian == {*blocks, "fc.weight_log_var"}
    assert lines[-1]["nll"] < lines[0]["nll"]
    assert lines[-1]["nll"] == pytest.approx(scores_again(chosen, posterior)["nll"], rel=1e-6)


def test_more_layers_than_the_network_has_and_absent_factories_end_a_run_before_it_starts():
    with pytest.raises(SettingError, match="bayesian_layers: 21; expected .* 0 to 20"):
        task_of(resolve({"model": "resnet20", "bayesian_layers": 21})).check(own_data=False)
    with pytest.raises(SettingError, match="model: 'own_models:absent'"):
        task_of(resolve({"model": "own_models:absent"})).check(own_data=False)
    with pytest.raises(SettingError, match="mlp or linear for task=regression"):
        resolve({"task": "regression", "model": "resnet20"})


@pytest.mark.parametrize(
    "model",
    ["own_models:failing", "own_models:deaf", "own_models:several", "torch.nn:Linear", "json:loads",
     "math:pi", "broken_on_import:make"],
)  # fmt: skip
def test_a_factory_or_a_network_of_ones_own_that_fails_is_one_line(model, tmp_path, monkeypatch):
    (tmp_path / "broken_on_import.py").write_text("raise ValueError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingError, match="^model: ."):
        task_of(resolve({"model": model})).check(own_data=False)
