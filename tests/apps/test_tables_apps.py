"""A classification of tables through the two apps: what a run writes, repeats, resumes, refuses."""

import numpy as np
import pytest
import torch
from refusals import refused
from runs_of import INLINE, lines, tensors
from sklearn.linear_model import LogisticRegression

from fedbary import client_app
from fedbary.data.deal import Deal, evaluation_data, rows
from fedbary.data.tables import load_labelled
from fedbary.launching.launch import validate_run
from fedbary.scores.tables import score
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import task_of

QUICK = {**INLINE, "task": "tables", "clients": 3, "rounds": 2, "local_epochs": 2}


def settings(**changes):
    return resolve({**QUICK, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables") / "run"
    run_inline(settings(pictures=True), folder)
    return folder


def test_a_run_folder_holds_scores_pictures_and_what_standardises(finished):
    assert {path.name for path in finished.iterdir()} == {
        "settings.yaml", "metrics.jsonl", "record.jsonl", "posterior.safetensors",
        "standardiser.safetensors",
        "signature.json", "data.json", "data-rows.safetensors",
        "partition.png", "learning-curves.png", "reliability.png", "roc.png",
        "checkpoint-0001.safetensors", "checkpoint-0002.safetensors",
    }  # fmt: skip
    for line in lines(finished)[1:]:
        assert {"accuracy", "nll", "ece", "brier", "auroc", "sensitivity"} <= line.keys()
        assert 0 <= line["held_out"]["auroc"] <= 1
        assert 0 <= line["local_models"]["weighted_accuracy"] <= 1


def test_clients_standardise_by_sums_alone_as_if_they_had_shared_their_rows(tmp_path):
    chosen = settings(holdout=0.0, rounds=1, local_epochs=1)
    run_inline(chosen, tmp_path / "run")
    table = load_labelled(chosen.dataset, chosen.data_dir)
    pool = rows(table, Deal(split=0, holdout=0.0))[0]
    found = tensors(tmp_path / "run", "standardiser")
    torch.testing.assert_close(found["mean"], table.x[pool].mean(0))
    torch.testing.assert_close(found["std"], table.x[pool].std(0, correction=0))
    assert found["class_rows"].tolist() == torch.bincount(table.y[pool]).tolist()


def test_a_federation_is_as_good_as_logistic_regression_on_all_rows(tmp_path):
    """Over ten splits, whose tests have 56 rows each."""
    found = []
    for split in range(10):
        chosen = settings(split=split, model="linear", rounds=5, samples=20, evaluate_clients=0)
        run_inline(chosen, tmp_path / f"{split}")
        table, deal = load_labelled(chosen.dataset, chosen.data_dir), Deal(split=split)
        pool, (x, y) = rows(table, deal)[0], evaluation_data(table, deal)
        mean, std = table.x[pool].mean(0), table.x[pool].std(0)
        central = LogisticRegression(max_iter=5000).fit((table.x[pool] - mean) / std, table.y[pool])
        probs = torch.from_numpy(central.predict_proba((x - mean) / std))
        line, rival = lines(tmp_path / f"{split}")[-1], score(probs, y)
        found.append([line["nll"] - rival["nll"], line["auroc"] - rival["auroc"]])
    nll, auroc = np.mean(found, axis=0)
    assert nll < 0.02 and auroc > -0.005


def test_balanced_weights_find_a_rare_class_and_leave_probabilities_its_own(tmp_path):
    """One row in twenty is positive; a few steps from zero find it only if it weighs more."""
    generator = np.random.default_rng(0)
    labels = (np.arange(2000) % 20 == 0).astype(int)
    x = generator.normal(size=(2000, 3)) + 1.5 * labels[:, None]
    np.savetxt(
        tmp_path / "rare.csv", np.column_stack([x, labels]),
        delimiter=",", header="a,b,c,y", comments="", fmt=["%.6f"] * 3 + ["%d"],
    )  # fmt: skip
    few = {"dataset": str(tmp_path / "rare.csv"), "partition": "iid", "model": "linear"}
    for scheme in ("none", "balanced"):
        run_inline(settings(**few, class_weights=scheme), tmp_path / scheme)
    weights = [tensors(tmp_path / scheme)["output.bias"] for scheme in ("none", "balanced")]
    gaps = [float(bias[1] - bias[0]) for bias in weights]
    assert gaps[1] > gaps[0] + 1
    line = lines(tmp_path / "balanced")[-1]
    assert line["auroc"] > 0.9
    assert line["nll"] < -(0.05 * np.log(0.05) + 0.95 * np.log(0.95))


def csv(folder, name, sexes, seed):
    generator = np.random.default_rng(seed)
    ages = generator.integers(20, 90, 60)
    outcome = np.where(ages + generator.normal(0, 10, 60) > 60, "died", "lived")
    cells = [f"{ages[i]},{sexes[i % len(sexes)]},{outcome[i]}" for i in range(60)]
    (folder / name).write_text("\n".join(["age,sex,outcome", *cells]) + "\n")
    return str(folder / name)


def test_sites_hold_files_of_their_own_with_text_and_one_that_does_not_fit_is_left_out(
    tmp_path, caplog
):
    server = csv(tmp_path, "server.csv", ("male", "female"), 0)
    paths = [csv(tmp_path, f"{n}.csv", ("male", "female"), s) for s, n in enumerate("ab", 1)]
    nodes = [{"data-path": path, "name": path[-5]} for path in paths]
    nodes.append({"data-path": csv(tmp_path, "c.csv", ("m", "f"), 3), "name": "c"})
    chosen = settings(dataset=server, target="outcome", classes="lived,died")
    validate_run(chosen, tmp_path / "run", own_data=True)
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, tmp_path / "run")
    last = lines(tmp_path / "run")[-1]
    assert [client["site"] for client in last["clients"]] == ["a", "b"]
    assert last["auroc"] > 0.8
    (at_site,) = {record.getMessage() for record in caplog.records if record.levelname == "ERROR"}
    (at_server,) = [text for text in caplog.messages if "is left out" in text]
    assert "row 1, feature 'sex': 'm'; expected female, male" in at_site
    assert "columns or cells that do not fit; the site's log says more" in at_server
    assert "sex" not in at_server


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "cnn"}, "model: 'cnn'; expected mlp, linear"),
        ({"dataset": "none", "classes": "2", "input_shape": "1x8x8"}, "dataset: 'none'"),
        ({"dataset": "diabetes"}, "dataset: 'diabetes'; expected breast_cancer"),
        ({"predictive": "closed"}, "closed is for regression"),
        ({"bayesian_layers": 3}, "bayesian_layers: 3"),
        ({"classes": "good,bad"}, "good, bad"),
        ({"specificity": 1.5}, "specificity: 1.5"),
        ({"class_weights": "some"}, "class_weights: 'some'; expected none, balanced"),
        ({"ood_dataset": "digits"}, "ood_dataset: 'digits'"),
        ({"clients": 600}, "min_examples|clients"),
    ],
)
def test_what_does_not_fit_is_one_line(changes, said, tmp_path):
    refused(said, lambda: validate_run(settings(**changes), tmp_path / "run"))


def test_rows_of_another_file_are_tested_and_others_are_out_of_distribution(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 3)), rng.integers(0, 2, 90)
    x[:, 0] += 50 * y
    for name, held in {"train": slice(60), "test": slice(60, 90)}.items():
        np.savez(tmp_path / f"{name}.npz", x=x[held], y=y[held])
    np.savez(tmp_path / "far.npz", x=x[:20] + 25)
    named = {name: str(tmp_path / f"{name}.npz") for name in ("train", "test", "far")}
    chosen = settings(
        dataset=named["train"], test_dataset=named["test"], ood_dataset=named["far"],
        min_examples=1, holdout=0.0,
    )  # fmt: skip
    validate_run(chosen, tmp_path / "run")
    run_inline(chosen, tmp_path / "run")
    tested = task_of(chosen).evaluation_examples()
    assert np.array_equal(tested.x.numpy(), x[60:])
    assert np.array_equal(tested.y.numpy(), y[60:])
    line = lines(tmp_path / "run")[-1]
    assert sum(client["num-examples"] for client in line["clients"]) == 60
    assert 0 <= line["ood"]["auroc_entropy"] <= 1


def test_foreign_rows_without_a_column_are_refused_before_the_run(tmp_path):
    np.savez(tmp_path / "far.npz", x=np.zeros((4, 2)))
    chosen = settings(ood_dataset=str(tmp_path / "far.npz"))
    refused("missing", validate_run, chosen, tmp_path / "run")
