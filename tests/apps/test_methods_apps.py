"""What holds for every method in the apps: it trains under each task, whoever attacks."""

import json

import pytest
from every_method import (
    EACH,
    EVEN,
    NIGHT,
    ODD,
    OF_CLASSES,
    gaussian_layers,
    of_tables,
    same,
    settings,
)

from fedbary.methods import METHODS
from server_app.engine.inline import run_inline


def has_a_loss(client):
    """Whether a client that trained said its loss; sums are of no training."""
    return "train-nll" in client or "train-mse" in client


@pytest.mark.parametrize("name", ODD)
def test_it_trains_when_some_clients_take_part_and_writes_what_it_did(name, tmp_path):
    chosen = settings(
        name, model="mlp", bayesian_layers=gaussian_layers(name),
        clients=4, participation=0.5, rounds=4, local_epochs=4,
    )  # fmt: skip
    run_inline(chosen, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert last["nll"] < first["nll"] - 0.5
    assert METHODS[name].fits_last_layer or all(map(has_a_loss, last["clients"]))
    assert last["refused"] == []


REGRESSION = {
    "task": "regression", "lr": 0.01, "batch_size": 16, "local_epochs": 8, "log_var_lr": 0.01,
    "kl_weight": 0.1,
}  # fmt: skip


TASKS = {"regression": REGRESSION, "tables": {"task": "tables"}}


@pytest.mark.parametrize(
    ("name", "task"),
    [
        (name, task)
        for i, name in enumerate(EACH)
        for j, task in enumerate(TASKS)
        if (NIGHT or (i + j) % 2) and not (METHODS[name].fits_last_layer and task == "regression")
    ],
)
def test_it_trains_in_every_task_that_is_no_classification_of_images(name, task, tmp_path):
    """By day every other kind of method in each task."""
    chosen = dict(TASKS[task])
    if task == "regression" and not METHODS[name].squares:
        chosen["noise"] = "learned"
    if name == "FedAvgM":
        chosen["server_momentum"] = 0.3  # three rounds at 0.9 go too far
    chosen = settings(name, **chosen, bayesian_layers=gaussian_layers(name))
    run_inline(chosen, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert first["nll"] is None or last["nll"] < first["nll"] - 0.1
    assert last["admitted"] == 3 and last["refused"] == []
    assert METHODS[name].fits_last_layer or all(map(has_a_loss, last["clients"]))


@pytest.mark.parametrize("name", ODD)
def test_packed_messages_carry_all_that_a_method_sends(name, tmp_path):
    run_inline(of_tables(name, compress="all"), tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert first["nll"] is None or last["nll"] < first["nll"] - 0.1
    assert last["admitted"] == 3 and last["refused"] == []


@pytest.mark.parametrize("predictive", ["members", "product", "montecarlo"])
def test_networks_that_the_method_keeps_predict_together(predictive, tmp_path):
    chosen = settings("FedAG", model="mlp", predictive=predictive, rounds=6, local_epochs=4)
    run_inline(chosen, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert last["nll"] < first["nll"] - 0.1
    assert last["uncertainty"]["epistemic"] > 1e-4


@pytest.mark.parametrize("name", EVEN)
def test_a_hostile_client_changes_the_model_or_is_refused_by_name(name, tmp_path):
    for attack in ("none", "scaling", "inner_product"):
        chosen = of_tables(name, rounds=1, attack=attack, hostile_fraction=0.3)
        run_inline(chosen, tmp_path / attack)
        (*_, last) = (tmp_path / attack / "metrics.jsonl").read_text().splitlines()
        refused = json.loads(last)["refused"]
        assert len(refused) <= 1 and all("partition" in reason for reason in refused)
        assert attack == "none" or not same(tmp_path / "none", tmp_path / attack)


@pytest.mark.cuda
@pytest.mark.parametrize("name", OF_CLASSES)
def test_every_method_runs_on_a_gpu_where_each_clients_reply_counts(name, tmp_path):
    layers = gaussian_layers(name, 3)
    chosen = settings(name, device="cuda", rounds=2, evaluate_clients=1, bayesian_layers=layers)
    if METHODS[name].squares:
        pytest.skip("it is of regressions, which run on CPUs")
    run_inline(chosen, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["admitted"] for line in lines[1:]] == [3, 3]
