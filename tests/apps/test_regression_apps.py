"""A regression through the two apps: what a run writes, how it repeats, resumes and errs."""

import numpy as np
import pytest
import torch
import yaml
from flwr.clientapp import ClientApp
from runs_of import lines, same, tensors

import client_app
from fedbary import Posterior
from fedbary.data.deal import evaluation_data, training_data
from fedbary.errors import SettingError
from fedbary.launching.launch import prepare
from fedbary.methods.fedag import fit_gaussian
from fedbary.predictive.regression import RegressionStandardiser
from fedbary.scores.regression import score
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from findings.regression.central import bayesian_linear
from server_app import run
from server_app.engine.inline import InlineGrid, run_inline

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
        "settings.yaml", "metrics.jsonl", "posterior.safetensors", "networks.safetensors",
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


def test_clients_standardise_by_sums_alone_as_if_they_had_shared_their_rows(finished):
    task = task_of(settings())
    x, y = training_data(task.held, task.deal)
    columns = torch.cat([x, y[:, None]], 1)
    standardiser = tensors(finished, "standardiser")
    torch.testing.assert_close(standardiser["mean"], columns.mean(0))
    torch.testing.assert_close(standardiser["std"], columns.std(0, correction=0))


def test_one_seed_one_result_and_splits_differ(finished, tmp_path):
    run_inline(settings(), tmp_path / "again")
    assert same(tensors(finished), tensors(tmp_path / "again"))
    assert [line["nll"] for line in lines(finished)] == [
        line["nll"] for line in lines(tmp_path / "again")
    ]
    run_inline(settings(split=1, noise="none"), tmp_path / "other")
    assert not same(tensors(finished), tensors(tmp_path / "other"))
    assert "without_noise" not in lines(tmp_path / "other")[2]


@pytest.mark.parametrize("messages", [0, 2, 3, 5])
def test_resumed_it_ends_as_without_the_interruption(messages, finished, tmp_path):
    chosen, left = settings(), iter(range(messages))

    def train(message, context):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return client_app.train(message, context)

    app = ClientApp()
    app.query()(client_app.query)
    app.query("ask")(client_app.ask)
    app.train()(train)
    with pytest.raises(KeyboardInterrupt):
        run(InlineGrid(app, chosen.clients, chosen.model_dump()), chosen, tmp_path / "run")
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


def test_sites_may_hold_files_of_their_own(tmp_path):
    rng = np.random.default_rng(0)
    nodes = []
    for name in ("north", "south"):
        rows = rng.normal(size=(30, 3))
        text = "\n".join(",".join(map(str, row)) for row in rows)
        (tmp_path / f"{name}.csv").write_text(f"a,b,y\n{text}\n")
        nodes.append({"data-path": str(tmp_path / f"{name}.csv"), "name": name})
    chosen = settings(dataset=str(tmp_path / "north.csv"), clients=2)
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, tmp_path / "run")
    assert [client["site"] for client in lines(tmp_path / "run")[1]["clients"]] == [
        "north",
        "south",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "cnn"}, "model: 'cnn'"),
        ({"noise": "learned"}, "none, cross or a number"),
        ({"noise": 0.0}, "a number above 0"),
        ({"method": "barycentre"}, "regression-vi"),
        ({"predictive": "closed"}, "for a network"),
        ({"bayesian_layers": 1}, "0 for method=FedAG"),
        ({"partition": "dirichlet"}, "iid, quantity or"),
        ({"device": "cuda"}, "CPU"),
        ({"dataset": "nope"}, "diabetes, or the path"),
        ({"clients": 399}, "at most the 398"),
        ({"predictive": "dropout"}, "montecarlo, members, closed"),
    ],
)
def test_what_does_not_fit_is_one_line(changes, said, tmp_path):
    with pytest.raises(SettingError, match=said) as caught:
        prepare(settings(**changes), tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("x,z\n1,2\n2,3\n", "target: 'y'"),
        ("x,y\n1,2\n2,?\n", "row 2"),
        ("x,y\n1,2\nnan,3\n", "row 2"),
    ],
)
def test_files_that_are_no_regression_are_refused(cells, said, tmp_path):
    (tmp_path / "bad.csv").write_text(cells)
    with pytest.raises(SettingError, match=said):
        prepare(settings(dataset=str(tmp_path / "bad.csv")), tmp_path / "run")


def test_what_may_resume_but_has_no_checkpoint_begins(finished, tmp_path):
    run_inline(settings(resume="last"), tmp_path / "run")
    assert same(tensors(tmp_path / "run"), tensors(finished))


@pytest.mark.parametrize("spoilt", [{"count": 0}, {"count": None}])
def test_answers_that_are_no_sums_are_left_out(spoilt, tmp_path):
    """A client that lies about its columns or its noise counts in neither and ends nothing."""
    app = ClientApp()
    app.query()(client_app.query)
    app.train()(client_app.train)

    def lying(answer):
        def answered(message, context):
            reply = answer(message, context)
            if context.node_config["partition-id"] == 0:
                metrics = reply.content["metrics"]
                for key, value in spoilt.items():
                    if value is None:
                        del metrics[key]
                    else:
                        metrics[key] = value
            return reply

        return answered

    app.query("ask")(lying(client_app.ask))
    chosen = settings(rounds=1)
    run(InlineGrid(app, 3, chosen.model_dump()), chosen, tmp_path / "run")
    line = lines(tmp_path / "run")[1]
    assert line["noise_var"] > 0 and line["admitted"] == 3
