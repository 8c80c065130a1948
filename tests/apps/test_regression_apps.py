"""A regression through the two apps: what a run writes, how it repeats, resumes and errs."""

import numpy as np
import pytest
import yaml
from hostile_site import cut_off, run_with_a_hostile_site
from runs_of import lines, same, tensors

from fedbary import Posterior
from fedbary.data.deal import evaluation_data, training_data
from fedbary.errors import SettingError
from fedbary.launching.launch import validate_run
from fedbary.methods.fedag import fit_gaussian
from fedbary.predictive.regression import RegressionStandardiser
from fedbary.scores.regression import score
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from findings.regression.central import bayesian_linear

SMALL = {"engine": "inline", "pictures": False, "clients": 3, "rounds": 2}
QUICK = {**SMALL, "task": "regression", "local_epochs": 2}
VI = {**SMALL, "protocol": "regression-vi", "local_epochs": 1}


def settings(**changes):
    return resolve({**QUICK, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("regression") / "run"
    run_inline(settings(pictures=True), folder)
    return folder


def test_diabetes_is_what_task_regression_runs_on(finished):
    assert {path.name for path in finished.iterdir()} == {
        "settings.yaml", "metrics.jsonl", "record.jsonl", "posterior.safetensors",
        "networks.safetensors",
        "signature.json", "data.json", "data-rows.safetensors",
        "standardiser.safetensors", "learning-curves.png", "coverage.png",
        "checkpoint-0001.safetensors", "checkpoint-0002.safetensors",
    }  # fmt: skip
    written = yaml.safe_load((finished / "settings.yaml").read_text())
    assert written["settings"]["dataset"] == "diabetes"
    assert resolve(written["settings"]) == settings(output=str(finished), pictures=True)
    for line in lines(finished)[1:]:
        names = {"nll", "rmse", "crps", "sharpness", "coverage_50", "coverage_90", "coverage_95"}
        assert names <= line.keys() and names == line["without_noise"].keys()
        assert line["noise_var"] > 0
        assert line["nll"] < line["without_noise"]["nll"]
        assert [client["site"] for client in line["clients"]] == [
            f"partition {k}" for k in (0, 1, 2)
        ]


def test_the_posterior_is_the_gaussian_over_the_networks_beside_it(finished):
    networks = tensors(finished, "networks")
    assert networks["hidden.weight"].shape == (3, 50, 10)
    assert same(fit_gaussian(networks).state_dict(), tensors(finished))
    assert Posterior.from_state_dict(tensors(finished)).log_var.keys() == networks.keys()


def test_splits_differ(finished, tmp_path):
    run_inline(settings(split=1, noise="none"), tmp_path / "other")
    assert not same(tensors(finished), tensors(tmp_path / "other"))
    assert "without_noise" not in lines(tmp_path / "other")[2]


@pytest.mark.parametrize("messages", [0, 3])
def test_resumed_it_ends_as_without_the_interruption(messages, finished, tmp_path):
    cut_off(settings(), tmp_path / "run", messages)
    run_inline(settings(resume="last"), tmp_path / "run")
    for name in ("posterior", "networks", "standardiser"):
        assert same(tensors(tmp_path / "run", name), tensors(finished, name))
    scores = [[line["nll"], line["noise_var"]] for line in lines(tmp_path / "run")]
    assert scores == [[line["nll"], line["noise_var"]] for line in lines(finished)]


def test_part_of_the_clients_train_and_leave_a_posterior(tmp_path):
    run_inline(settings(participation=0.67, predictive="montecarlo"), tmp_path / "run")
    assert len(tensors(tmp_path / "run", "networks")["output.weight"]) == 2
    assert np.isfinite(lines(tmp_path / "run")[-1]["nll"])


def test_linear_fedag_is_close_to_bayesian_linear_regression(tmp_path):
    linear = settings(
        clients=10, rounds=1, model="linear", predictive="closed", local_epochs=40, lr=0.003
    )
    run_inline(linear, tmp_path / "run")
    standardiser = RegressionStandardiser(**tensors(tmp_path / "run", "standardiser"))
    task = task_of(linear)
    x, y = training_data(task.held, task.deal)
    x_new, y_new = evaluation_data(task.held, task.deal)
    x, y, x_new = standardiser.features(x), standardiser.target(y), standardiser.features(x_new)
    central = score(standardiser.restore(bayesian_linear(x, y, x_new)), y_new)
    assert lines(tmp_path / "run")[-1]["nll"] == pytest.approx(central["nll"], abs=0.1)


@pytest.mark.parametrize("rule", ["RKLB", "WB", "FedAvg"])
def test_barycentres_of_local_posteriors_regress_too(rule, tmp_path):
    layers = 0 if rule == "FedAvg" else 2
    run_inline(resolve({**VI, "rule": rule, "bayesian_layers": layers}), tmp_path / "run")
    first, last = lines(tmp_path / "run")[0], lines(tmp_path / "run")[-1]
    assert last["nll"] < first["nll"]
    assert not (tmp_path / "run" / "networks.safetensors").exists()
    assert len(Posterior.from_state_dict(tensors(tmp_path / "run")).log_var) == layers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "cnn"), ("noise", "learned"), ("noise", 0.0),
        ("predictive", "closed"), ("bayesian_layers", 1), ("partition", "dirichlet"),
        ("device", "cuda"), ("dataset", "nope"), ("clients", 399), ("predictive", "dropout"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(name, value, tmp_path):
    with pytest.raises(SettingError) as caught:
        validate_run(settings(**{name: value}), tmp_path / "run")
    assert caught.value.setting == name


def test_another_method_is_led_to_the_protocol_with_its_noise():
    with pytest.raises(SettingError, match="^noise: .*regression-vi"):
        settings(method="barycentre")


@pytest.mark.parametrize("count", [0, None])
def test_answers_that_are_no_sums_are_left_out(count, tmp_path):
    """A client that lies about its columns or its noise counts in neither and ends nothing."""

    def lie(action, reply):
        if action == "ask":
            metrics = reply.content["metrics"]
            metrics["count"] = 0
            if count is None:
                del metrics["count"]

    run_with_a_hostile_site(settings(rounds=1), tmp_path / "run", lie)
    line = lines(tmp_path / "run")[1]
    assert line["noise_var"] > 0 and line["admitted"] == 3
