"""Clients score their own models, or those of their groups, beside the global one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from runs_of import INLINE, SHORT, lines

from fedbary import load
from fedbary.errors import SettingError
from fedbary.methods import METHODS, Reply, Server, method_named, require_method
from fedbary.predictive.projection import STRENGTHS
from fedbary.runs.memory import Memory
from fedbary.scores.metrics import evaluate, fairness, label_share_weights
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import read_yaml, resolve
from fedbary.strategies.by_name import strategy_for
from fedbary.strategies.client import global_model
from fedbary.variational.layers import VariationalLinear, reset_layer

QUICK = {**SHORT, "clients": 3, "rounds": 2, "local_epochs": 2, "alpha": 0.2}
SCORES = {"accuracy", "nll", "ece", "brier"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("personal") / "run"
    run_inline(resolve({**QUICK, "method": "pFedVem", "pictures": True}), folder)
    return folder


def test_every_client_scores_both_models_on_both_kinds_of_data(folder):
    last = lines(folder)[-1]
    clients = last["held_out"]["clients"]
    assert len(clients) == 3 and last["refused"] == []
    prefixes = ("", "personal-", "share-", "personal-share-")
    wanted = {prefix + score for prefix in prefixes for score in SCORES}
    assert all(client.keys() >= wanted for client in clients)
    for data, part in (("held_out", ""), ("shares", "share-")):
        for model, prefix in (("global", ""), ("personal", "personal-")):
            values = [client[f"{prefix}{part}accuracy"] for client in clients]
            weights = [client["num-examples"] for client in clients]
            assert last["personal"][data][model] == pytest.approx(fairness(values, weights))
    assert (folder / "who-gains.png").stat().st_size > 0
    assert "local_models" in last


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if method.personalises or method.shows]
)
def test_the_global_model_is_to_a_client_what_it_is_to_the_server(name):
    """Of what it is sent: the networks, and the posterior, by which everybody's are predicted."""
    layer = VariationalLinear(3, 2)
    reset_layer(layer, -4.0, torch.Generator().manual_seed(0))
    network = torch.nn.Linear(3, 2) if METHODS[name].deterministic else layer
    network = torch.nn.Sequential(network, torch.nn.BatchNorm1d(2))
    model = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    method = method_named(name)()
    like, generator = method.reply_like(model), torch.Generator().manual_seed(1)

    def sent_by(client):
        drawn = {n: torch.randn(t.shape, generator=generator).to(t) for n, t in like.items()}
        return Reply(client, 1.0, drawn)

    replies = [sent_by(client) for client in "012"]
    after, held = method.aggregate(Server(model, method.start(model)), replies)
    sent = method.show(Server(after, held, round=2), "0")
    found = global_model(method, sent, after.keys())
    for ours, theirs in (
        (found.model, after),
        (found.members, method.predictive(after, held).members),
        (found.posterior.mean, method.predictive(after, held).posterior.mean),
        (found.posterior.log_var, method.predictive(after, held).posterior.log_var),
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert found.kind == method.predictive(after, held).kind


@pytest.mark.parametrize(
    "words", [{"method": "FedHBMixture"}, {"method": "pFedVem", "init_log_var": 0.0}]
)
def test_clients_score_the_global_model_by_the_networks_that_the_server_predicts_by(
    words, tmp_path
):
    """The centres together; a head of wide scales without draws."""
    layers = int(words["method"] == "pFedVem")
    small = {
        "model": "mlp",
        "bayesian_layers": layers,
        "train_fraction": 0.3,
        "rounds": 1,
        "lr": 0.1,
    }
    run_inline(resolve({**QUICK, **small, **words}), tmp_path / "run")
    trained = load(tmp_path / "run")
    test = trained.task.evaluation_examples()
    probs = trained.predict(test).probs
    counts = read_yaml(tmp_path / "run" / "settings.yaml")["label_counts"]
    clients = lines(tmp_path / "run")[-1]["held_out"]["clients"]
    for client, held in zip(clients, counts, strict=True):
        weights = label_share_weights(test.y, held)
        expected = evaluate(probs, test.y, trained.settings.ece_bins, weights)
        found = {score: client[f"share-{score}"] for score in expected}
        assert found == pytest.approx(expected, rel=1e-4)


def test_models_of_clients_own_fit_their_skewed_data_better(folder):
    """Dirichlet 0.2: a few classes a client."""
    shares = lines(folder)[-1]["personal"]["shares"]
    own, common = (shares[model]["weighted_accuracy"] for model in ("personal", "global"))
    assert own > common + 0.1


def test_a_method_without_own_models_scores_as_before(tmp_path):
    run_inline(resolve({**QUICK, "method": "PVI", "rounds": 1, "pictures": True}), tmp_path / "run")
    (last,) = lines(tmp_path / "run")[1:]
    assert "personal" not in last
    assert not any(
        "share-" in name or "personal" in name for name in last["held_out"]["clients"][0]
    )
    assert not (tmp_path / "run" / "who-gains.png").exists()
    assert not (tmp_path / "run" / "clients").exists()


def test_who_has_no_model_yet_would_use_the_global_one(tmp_path):
    """One of four trains in the only round, all evaluate."""
    chosen = {**QUICK, "clients": 4, "rounds": 1, "participation": 0.25, "method": "pFedBayes"}
    run_inline(resolve(chosen), tmp_path / "run")
    last = lines(tmp_path / "run")[-1]
    trained = {client["site"] for client in last["clients"]}
    assert len(trained) == 1
    for client in last["held_out"]["clients"]:
        same = all(client[name] == client[f"personal-{name}"] for name in SCORES)
        assert same == (client["site"] not in trained)


def test_a_client_that_lost_what_it_kept_is_left_out_by_name(tmp_path, monkeypatch):
    recall, asked = Memory.recall, []

    def lost(self, admitted):
        asked.append(admitted)
        if len(asked) > 3:  # the three trained; the three own models are asked for now
            raise SettingError("kept", "nothing", f"this client's tensors of round {admitted}")
        return recall(self, admitted)

    monkeypatch.setattr(Memory, "recall", lost)
    run_inline(resolve({**QUICK, "rounds": 1, "method": "pFedVem"}), tmp_path / "run")
    last = lines(tmp_path / "run")[-1]
    assert "held_out" not in last and len(last["refused"]) == 3
    assert all("tensors of round 1" in reason for reason in last["refused"])


@pytest.mark.parametrize("words", [{"rule": "WB"}, {"method": "FedPA", "bayesian_layers": 0}])
def test_after_any_run_clients_are_projected_for_every_strength(words, tmp_path):
    run_inline(resolve({**QUICK, "projection": "WB", **words}), tmp_path / "run")
    first, last = lines(tmp_path / "run")[1:]
    names = {"global", "personal"}
    assert all(spreads.keys() == names for spreads in first["personal"].values())
    names |= {f"projected-{called}" for called in STRENGTHS}
    assert all(spreads.keys() == names for spreads in last["personal"].values())
    assert last["refused"] == [] and len(last["held_out"]["clients"]) == 3
    for client, trained in zip(last["held_out"]["clients"], last["clients"], strict=True):
        assert client["personal-nll"] != client["nll"]
        assert {"local-accuracy"} <= trained.keys()


def test_projection_is_refused_where_clients_have_models_of_their_own_or_no_data():
    refused("projection.*pFedVem", resolve, {"method": "pFedVem", "projection": "WB"})
    refused("projection.*holdout", resolve, {"holdout": 0, "projection": "WB"})


def test_strategies_ask_only_methods_with_own_models_for_them():
    for name, keep, asks in (("PVI", False, False), ("PVI", True, True), ("FedHB", False, True)):
        assert strategy_for(name)(keep_models=keep)._personal == asks


@given(st.lists(st.integers(0, 5), min_size=3, max_size=3), st.integers(0, 99))
def test_weights_by_label_shares_score_as_a_test_set_of_these_shares_does(shares, seed):
    """A test set of 10 per class, of which the other repeats each class `shares` times."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat(10)
    probs = torch.rand(30, 3, generator=generator).softmax(1)
    weights = label_share_weights(labels, [7 * share for share in shares])
    if not any(shares):
        assert weights is None
        return
    rows = torch.arange(30).repeat_interleave(torch.tensor(shares)[labels])
    repeated = evaluate(probs[rows], labels[rows], 7)
    assert evaluate(probs, labels, 7, weights) == pytest.approx(repeated, abs=1e-9)
    assert float(weights.sum()) == pytest.approx(1.0)


def test_a_class_that_the_test_set_lacks_is_left_out():
    labels = torch.tensor([0, 0, 1])
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.4, 0.6, 0.0]])
    weights = label_share_weights(labels, [4, 4, 8])
    assert float(weights.sum()) == pytest.approx(0.5)
    assert evaluate(probs, labels, 5, weights)["accuracy"] == pytest.approx(0.75)
    assert label_share_weights(labels, [0, 0, 8]) is None


GROUPS = {
    **INLINE, "clients": 4, "rounds": 1, "local_epochs": 2, "model": "linear", "rule": "FedAvg",
    "bayesian_layers": 0, "method": "Hierarchy", "groups": "a,a,b,b",
}  # fmt: skip


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    grouped = tmp_path_factory.mktemp("groups") / "run"
    run_inline(resolve(GROUPS), grouped)
    return grouped


def test_a_group_s_scores_are_its_clients_mean(grouped):
    last = lines(grouped)[-1]
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


def test_both_levels_are_loaded_and_predict_as_clients_scored_them(grouped):
    counts = read_yaml(grouped / "settings.yaml")["label_counts"]
    clients = lines(grouped)[-1]["held_out"]["clients"]
    for group, prefix in ((None, "share-"), ("a", "personal-share-"), ("b", "personal-share-")):
        trained = load(grouped, group=group)
        test = trained.task.evaluation_examples()
        probs = trained.predict(test).probs
        for k in (0, 1) if group == "a" else (2, 3):
            weights = label_share_weights(test.y, counts[k])
            expected = evaluate(probs, test.y, trained.settings.ece_bins, weights)
            found = {score: clients[k][prefix + score] for score in expected}
            assert found == pytest.approx(expected, rel=1e-4)
    refused("group: 'c'; expected a group of this run: a, b", load, grouped, group="c")


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
    refused(named, lambda: require_method(resolve({**GROUPS, **words})))
