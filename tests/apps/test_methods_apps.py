"""What holds for every method in the apps: it trains and resumes, or is refused."""

import pytest
from every_method import (
    EACH,
    EVEN,
    NIGHT,
    ODD,
    OF_CLASSES,
    OF_TERMS,
    QUICK,
    gaussian_layers,
    of_tables,
    same,
    settings,
)
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage
from hostile_site import cut_off
from refusals import refused
from runs_of import lines

from fedbary import client_app
from fedbary.errors import SettingError
from fedbary.launching.launch import validate_run
from fedbary.methods import METHODS, require_method
from fedbary.methods._sites import ServerFactorMethod
from fedbary.methods._sums import SumsMethod
from fedbary.methods.lda import LDA
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import completed, resolve


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
    first, *_, last = lines(tmp_path / "run")
    assert last["nll"] < first["nll"] - 0.5
    assert issubclass(METHODS[name], SumsMethod) or all(map(has_a_loss, last["clients"]))
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
        if (NIGHT or (i + j) % 2)
        and not (issubclass(METHODS[name], SumsMethod) and task == "regression")
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
    first, *_, last = lines(tmp_path / "run")
    assert first["nll"] is None or last["nll"] < first["nll"] - 0.1
    assert last["admitted"] == 3 and last["refused"] == []
    assert issubclass(METHODS[name], SumsMethod) or all(map(has_a_loss, last["clients"]))


@pytest.mark.parametrize("name", ODD)
def test_packed_messages_carry_all_that_a_method_sends(name, tmp_path):
    run_inline(of_tables(name, compress="all"), tmp_path / "run")
    first, *_, last = lines(tmp_path / "run")
    assert first["nll"] is None or last["nll"] < first["nll"] - 0.1
    assert last["admitted"] == 3 and last["refused"] == []


@pytest.mark.parametrize("predictive", ["members", "product", "montecarlo"])
def test_networks_that_the_method_keeps_predict_together(predictive, tmp_path):
    chosen = settings("FedAG", model="mlp", predictive=predictive, rounds=6, local_epochs=4)
    run_inline(chosen, tmp_path / "run")
    first, *_, last = lines(tmp_path / "run")
    assert last["nll"] < first["nll"] - 0.1
    assert last["uncertainty"]["epistemic"] > 1e-4


@pytest.mark.parametrize("name", EVEN)
def test_a_hostile_client_changes_the_model_or_is_refused_by_name(name, tmp_path):
    for attack in ("none", "scaling", "inner_product"):
        chosen = of_tables(name, rounds=1, attack=attack, hostile_fraction=0.3)
        run_inline(chosen, tmp_path / attack)
        refused = lines(tmp_path / attack)[-1]["refused"]
        assert len(refused) <= 1 and all("partition" in reason for reason in refused)
        assert attack == "none" or not same(tmp_path / "none", tmp_path / attack)


@pytest.mark.cuda
@pytest.mark.parametrize("name", OF_CLASSES)
def test_every_method_runs_on_a_gpu_where_each_clients_reply_counts(name, tmp_path):
    layers = gaussian_layers(name, 3)
    chosen = settings(name, device="cuda", rounds=2, evaluate_clients=1, bayesian_layers=layers)
    run_inline(chosen, tmp_path / "run")
    assert [line["admitted"] for line in lines(tmp_path / "run")[1:]] == [3, 3]


@pytest.mark.parametrize("name", ODD)
def test_a_run_cut_off_at_any_round_goes_on_to_the_same_model(name, tmp_path):
    run_inline(of_tables(name), tmp_path / "whole")
    for messages in (1, 4, 8) if NIGHT else (4,):
        folder = tmp_path / f"cut{messages}"
        cut_off(of_tables(name, output=str(folder)), folder, messages)
        run_inline(of_tables(name, resume="last"), folder)
        assert same(folder, tmp_path / "whole")


class Wire(InlineGrid):
    """Messages and what clients remember pass between nodes as bytes, as between processes."""

    def _answer(self, message):
        node = message.metadata.dst_node_id
        context = context_to_proto(self._contexts[node]).SerializeToString()
        self._contexts[node] = context_from_proto(ProtoContext.FromString(context))
        return by_wire(super()._answer(by_wire(message)))


def by_wire(message):
    return message_from_proto(
        ProtoMessage.FromString(message_to_proto(message).SerializeToString())
    )


@pytest.mark.parametrize("name", EVEN)
def test_what_travels_and_what_is_remembered_survives_as_bytes(name, tmp_path):
    chosen = of_tables(name, output=str(tmp_path / "wire"))
    run(Wire(client_app.app, chosen.clients, chosen.model_dump()), chosen, tmp_path / "wire")
    run_inline(of_tables(name), tmp_path / "plain")
    assert same(tmp_path / "wire", tmp_path / "plain")


PUBLISHED = [name for name in METHODS if name != "barycentre"]
"""Methods after which runs are called."""


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in OF_TERMS])
def test_a_regression_says_which_noise_its_method_takes(name):
    method = METHODS[name]
    chosen = {"method": name, "bayesian_layers": 0 if method.deterministic else 1}
    if issubclass(method, LDA):
        with pytest.raises(SettingError, match=f"method: '{name}'.*ConjugateGaussian.*classes"):
            resolve({"task": "regression", **chosen})
        return
    wrong, said = ("learned", "none, cross") if method.squares else ("cross", "learned")
    with pytest.raises(SettingError, match=f"noise: '{wrong}'.*{said}.*{name}"):
        resolve({"task": "regression", **chosen, "noise": wrong})


@pytest.mark.parametrize(
    "name", [name for name in METHODS if METHODS[name].deterministic is not None]
)
def test_a_model_of_the_other_kind_is_refused_before_the_start(name):
    with pytest.raises(SettingError, match=f"bayesian_layers.*{name}"):
        resolve({"method": name, "bayesian_layers": 3 if METHODS[name].deterministic else 0})


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"method": "FedPA", "local_epochs": 1}, "local_epochs"),
        ({"method": "PVI", "damping": 0.5}, "damping"),
        ({"method": "FedLAW"}, "server_fraction.*FedLAW"),
        (
            {"method": "FedProx", "bayesian_layers": 0, "predictive": "product"},
            "predictive: .product",
        ),
        ({"predictive": "members"}, "predictive: 'members'.*whose networks predict together"),
    ],
)
def test_rounds_that_do_not_do_for_a_method_are_refused_before_the_start(words, named, tmp_path):
    chosen = resolve({**QUICK, "output": str(tmp_path / "run"), **words})
    refused(named, validate_run, chosen, tmp_path / "run")
    refused(named, run_inline, chosen, tmp_path / "run")


@pytest.mark.parametrize(
    "name", [n for n, m in METHODS.items() if issubclass(m, ServerFactorMethod)]
)
def test_a_prior_that_does_not_act_is_refused_where_sites_need_one(name):
    refused(f"kl_weight: 0.*above 0 for method={name}", resolve, {"method": name, "kl_weight": 0})


def test_a_temperature_of_other_predictions_is_refused():
    for name in OF_CLASSES:
        kind = METHODS[name]
        by_model = not (kind.members or kind.draws_around)
        words = {"method": name, "bayesian_layers": 0 if kind.deterministic else 3}
        words |= {"calibrate": "temperature", "server_fraction": 0.1, "kl_weight": 1.0}
        if by_model or kind.shows or kind.personalises:
            require_method(completed(words))
        else:
            with pytest.raises(SettingError, match=f"calibrate: 'temperature'.*none for {name}"):
                require_method(completed(words))
