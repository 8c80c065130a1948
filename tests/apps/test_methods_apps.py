"""What holds for every method in the apps: engines and real servers agree, runs resume."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from flwr.clientapp import ClientApp
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage
from processes import marked, servers_of
from safetensors.torch import load_file

import client_app
from fedbary.errors import SettingError
from fedbary.launching.launch import prepare
from fedbary.methods import METHODS
from fedbary.settings.config import BARYCENTRE, resolve, validated
from fedbary.settings.parameters import methods
from server_app import run
from server_app.inline import InlineGrid, run_inline

PUBLISHED = [name for name in METHODS if name != BARYCENTRE]
"""Methods after which runs are called."""

KINDS = {
    (m.deterministic, m.remembers, m.personalises, m.shows, m.needs_bench): name
    for name, m in METHODS.items()
}.values()
"""A method of each kind of message and memory."""

ON_SERVERS = METHODS if os.environ.get("FEDBARY_EVERY_METHOD") else ["pFedVem"]
"""Methods that are tried on Ray and on real servers: one whose clients remember and keep models.

The barycentre is tried there in tests/launching; with FEDBARY_EVERY_METHOD=1 all are. What travels
between processes is tried of each method without them.
"""

EACH = [pytest.param(name, marks=() if name in KINDS else pytest.mark.slow) for name in METHODS]
"""Every method; without the tests marked slow one of each kind."""

FEDBARY = Path(sys.executable).parent / "fedbary"
QUICK = {"clients": 3, "rounds": 3, "local_epochs": 2, "samples": 2, "evaluate_clients": 0}
FEW = {"particles": 2, "server_steps": 10, "cycle": 1, "thinning": 1}
"""Parameters, where methods have them, for few networks, few steps and few rounds.

Particles' steps have the size of `lr` in each weight, so theirs is a tenth of SGD's.
"""

EARLY = {"keep_best": "nll", "evaluate_on": "validation", "patience": 2}


def settings(name, **changes):
    if METHODS[name].needs_bench:
        changes = {"server_fraction": 0.1, **changes}
    changes = {key: FEW[key] for key in FEW.keys() & methods()[name].parameters.keys()} | changes
    if "particles" in changes:
        changes = {"lr": 0.003, **changes}
    return resolve(
        {**QUICK, "engine": "inline", "pictures": False, "device": "cpu", "method": name, **changes}
    )


def of_tables(name, **changes):
    """Return settings of a network that is quick to train."""
    layers = 0 if METHODS[name].deterministic else 1
    return settings(name, task="tables", bayesian_layers=layers, **changes)


def posterior(folder):
    return load_file(folder / "posterior.safetensors")


def same(one, other):
    a, b = posterior(one), posterior(other)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def cut_off(chosen, folder, messages):
    """Make a run in which the server is interrupted while it waits for a later message."""
    app, left = ClientApp(), iter(range(messages))

    @app.train()
    def train(message, context):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return client_app.train(message, context)

    app.query()(client_app.query)
    app.query("ask")(client_app.ask)
    app.evaluate()(client_app.evaluate)
    with pytest.raises(KeyboardInterrupt):
        run(InlineGrid(app, chosen.clients, chosen.model_dump()), chosen, folder)


@pytest.mark.parametrize("name", EACH)
def test_a_run_cut_off_at_any_round_goes_on_to_the_same_model(name, tmp_path):
    run_inline(of_tables(name), tmp_path / "whole")
    for messages in (1, 4, 8):
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


@pytest.mark.parametrize("name", EACH)
def test_what_travels_and_what_is_remembered_survives_as_bytes(name, tmp_path):
    chosen = of_tables(name, output=str(tmp_path / "wire"))
    run(Wire(client_app.app, chosen.clients, chosen.model_dump()), chosen, tmp_path / "wire")
    run_inline(of_tables(name), tmp_path / "plain")
    assert same(tmp_path / "wire", tmp_path / "plain")


@pytest.mark.parametrize("name", EACH)
def test_it_trains_when_some_clients_take_part_and_writes_what_it_did(name, tmp_path):
    layers = 0 if METHODS[name].deterministic else 1
    chosen = settings(
        name, model="mlp", bayesian_layers=layers,
        clients=4, participation=0.5, rounds=6, local_epochs=4,
    )  # fmt: skip
    run_inline(chosen, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert last["nll"] < first["nll"] - 0.5
    assert all({"train-nll", "train-mse"} & client.keys() for client in last["clients"])
    assert last["refused"] == []


REGRESSION = {
    "task": "regression", "lr": 0.01, "batch_size": 16, "local_epochs": 8, "log_var_lr": 0.01,
    "kl_weight": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("task", [REGRESSION, {"task": "tables"}], ids=["regression", "tables"])
@pytest.mark.parametrize("name", EACH)
def test_it_trains_in_every_task_that_is_no_classification_of_images(name, task, tmp_path):
    chosen = dict(task)
    if task is REGRESSION and not METHODS[name].squares:
        chosen["noise"] = "learned"
    chosen = settings(name, **chosen, bayesian_layers=0 if METHODS[name].deterministic else 1)
    run_inline(chosen, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert first["nll"] is None or last["nll"] < first["nll"] - 0.1
    assert last["admitted"] == 3 and last["refused"] == []
    assert all({"train-nll", "train-mse"} & client.keys() for client in last["clients"])


@pytest.mark.parametrize("name", KINDS)
def test_packed_messages_carry_all_that_a_method_sends(name, tmp_path):
    run_inline(of_tables(name, compress="all"), tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert first["nll"] is None or last["nll"] < first["nll"] - 0.1
    assert last["admitted"] == 3 and last["refused"] == []


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_regression_says_which_noise_its_method_takes(name):
    method = METHODS[name]
    chosen = {"method": name, "bayesian_layers": 0 if method.deterministic else 1}
    wrong, said = ("learned", "none, cross") if method.squares else ("cross", "learned")
    with pytest.raises(SettingError, match=f"noise: '{wrong}'.*{said}.*{name}"):
        resolve({"task": "regression", **chosen, "noise": wrong})


def test_the_words_of_earlier_versions_are_those_of_today():
    """FedAG was a rule of regressions, and its members a bootstrap."""
    for words in ({"task": "regression", "lr": 0.003}, {"clients": 3}):
        today = resolve({**words, "method": "FedAG", "predictive": "members"})
        assert resolve({**words, "rule": "FedAG", "predictive": "bootstrap"}) == today
    held = {**resolve({"task": "regression"}).model_dump(), "method": "barycentre"}
    del held["estimator"]
    assert validated({**held, "rule": "FedAG"}) == resolve({"task": "regression"})


@pytest.mark.parametrize("predictive", ["members", "product", "montecarlo"])
def test_networks_that_the_method_keeps_predict_together(predictive, tmp_path):
    chosen = settings("FedAG", model="mlp", predictive=predictive, rounds=6, local_epochs=4)
    run_inline(chosen, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert last["nll"] < first["nll"] - 0.1
    assert last["uncertainty"]["epistemic"] > 1e-4


@pytest.mark.parametrize(
    "name", [name for name in METHODS if METHODS[name].deterministic is not None]
)
def test_a_model_of_the_other_kind_is_refused_before_the_start(name):
    with pytest.raises(SettingError, match=f"bayesian_layers.*{name}"):
        resolve({"method": name, "bayesian_layers": 3 if METHODS[name].deterministic else 0})


@pytest.mark.parametrize("name", EACH)
def test_a_hostile_client_changes_the_model_or_is_refused_by_name(name, tmp_path):
    for attack in ("none", "scaling", "inner_product"):
        chosen = of_tables(name, rounds=1, attack=attack, hostile_fraction=0.3)
        run_inline(chosen, tmp_path / attack)
        (*_, last) = (tmp_path / attack / "metrics.jsonl").read_text().splitlines()
        refused = json.loads(last)["refused"]
        assert len(refused) <= 1 and all("partition" in reason for reason in refused)
        assert attack == "none" or not same(tmp_path / "none", tmp_path / attack)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"method": "FedPA", "local_epochs": 1}, "local_epochs"),
        ({"method": "PVI", "damping": 0.5}, "damping"),
        ({"method": "FedLAW"}, "server_fraction.*FedLAW"),
        ({"method": "SnapshotEnsemble", "cycle": 4}, "cycle: 4.*at most rounds=3"),
        ({"method": "SnapshotEnsemble", "cycle": 3, **EARLY}, "patience: 2.*0 or from cycle=3 up"),
        (
            {"method": "FedProx", "bayesian_layers": 0, "predictive": "product"},
            "predictive: .product",
        ),
        ({"predictive": "members"}, "predictive: 'members'.*whose networks predict together"),
        *(({"method": n, "kl_weight": 0}, "kl_weight") for n, m in METHODS.items() if m.needs_kl),
    ],
)
def test_rounds_that_do_not_do_for_a_method_are_refused_before_the_start(words, named, tmp_path):
    chosen = resolve({**QUICK, "output": str(tmp_path / "run"), **words})
    with pytest.raises(SettingError, match=named):
        prepare(chosen, tmp_path / "run")
    with pytest.raises(SettingError, match=named):
        run_inline(chosen, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_SERVERS)
def test_ray_and_real_servers_give_the_model_of_one_process(name, tmp_path):
    chosen = {**QUICK, "device": "cpu", "method": name}
    chosen |= {key: FEW[key] for key in FEW.keys() & methods()[name].parameters.keys()}
    words = [f"{key}={value}" for key, value in chosen.items()]
    if METHODS[name].needs_bench:
        words.append("server_fraction=0.1")
    for command in (["simulate", "engine=inline"], ["simulate", "engine=ray"], ["deploy"]):
        done = subprocess.run(
            [str(FEDBARY), *command, *words, f"output={command[-1]}"],
            cwd=tmp_path, env=marked(tmp_path), capture_output=True, text=True,
            timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert same(tmp_path / "engine=ray", tmp_path / "engine=inline")
    assert same(tmp_path / "deploy", tmp_path / "engine=inline")
    assert servers_of(tmp_path) == []


@pytest.mark.cuda
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_on_a_gpu_where_each_clients_reply_counts(name, tmp_path):
    layers = 0 if METHODS[name].deterministic else 3
    chosen = settings(name, device="cuda", rounds=2, evaluate_clients=1, bayesian_layers=layers)
    if METHODS[name].squares:
        pytest.skip("it is of regressions, which run on CPUs")
    run_inline(chosen, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["admitted"] for line in lines[1:]] == [3, 3]
