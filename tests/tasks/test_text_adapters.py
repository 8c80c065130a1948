"""Adapters of a network of texts: they train on tokens, by peft's names of layers."""

import pytest
import torch
from own_texts import LONGEST, model, texts, write_model, write_table
from runs_of import lines, network, tensors

import fedbary
from fedbary import client_app
from fedbary.backbones import load_text
from fedbary.backbones._adapted import adapted
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import completed
from fedbary.variational.adapters import Adapters, adapter_names
from fedbary.variational.frozen import frozen_tensors

QUICK = {
    "task": "text", "engine": "inline", "device": "cpu", "pictures": False, "clients": 2,
    "min_examples": 5, "rounds": 1, "samples": 2, "text": "body", "download": False,
    "adapters": "lora", "targets": "query,value", "rank": 4, "lr": 0.1, "local_epochs": 1,
    "rule": "FedAvg", "bayesian_layers": 0,
}  # fmt: skip
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def chosen(named, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_table(folder / "reviews.csv", texts(90))

    def made(**changes):
        data = {"dataset": str(folder / "reviews.csv"), "data_dir": str(folder)}
        return completed({**QUICK, "backbone": named, **data, **changes})

    return made


@pytest.fixture(scope="module")
def done(chosen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "run"
    settings = chosen(rounds=2)
    run_inline(settings, folder)
    return settings, folder


def test_the_layers_are_those_that_peft_adapts(named):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["query", "value"])
    theirs = peft.inject_adapter_in_model(config, model())
    wanted = {n.rpartition(".lora_B")[0] for n, _ in theirs.named_modules() if ".lora_B." in n}
    backbone = load_text(named, "auto", "auto", False, CPU)
    own = adapted(backbone, torch.nn.Linear(16, 2), Adapters(4, "query,value"), 0)
    assert {name.removeprefix("model.") for name in adapter_names(own.body)} == wanted
    assert len(wanted) == 4


def test_what_stands_after_the_longest_text_changes_no_answer(named):
    backbone = load_text(named, "auto", "auto", False, CPU)
    own = adapted(backbone, torch.nn.Linear(16, 2), Adapters(4, "query,value"), 0)
    tokens, _ = backbone.encoder([*(text for text, _, _ in texts(9)), "the " * 60])
    assert tokens.shape == (10, LONGEST)
    with torch.no_grad():
        torch.testing.assert_close(own.features(tokens), backbone.features(tokens))
        torch.testing.assert_close(own(tokens)[:9], own(tokens[:9]))


@pytest.mark.slow
def test_messages_hold_adapters_and_head_alone(done):
    settings, folder = done
    trains = network(settings).state_dict()
    wanted = {f"body.model.encoder.layer.{k}.attention.self.{part}" for k in (0, 1) for part in
              ("query", "value")}  # fmt: skip
    wanted = {f"{name}.lora_B.default.weight" for name in wanted}
    assert trains.keys() == {*wanted, "head.output.weight", "head.output.bias"}
    start, whole = frozen_tensors(network(settings)), tensors(folder)
    assert all(torch.equal(whole[name], tensor) for name, tensor in start.items())
    assert all(whole[name].abs().max() > 0 for name in wanted)
    assert lines(folder)[-1]["accuracy"] > 0.8


def test_a_run_that_is_loaded_predicts_texts_and_tables(done, tmp_path):
    trained, rows = fedbary.load(done[1]), texts(12, seed=5)
    given = trained.predict([text for text, _, _ in rows])
    table = trained.predict(trained.read(write_table(tmp_path / "new.csv", rows)))
    assert torch.equal(given.probs, table.probs)
    examples = trained.evaluation_examples()
    found = trained.task.judged(trained.predict(examples), examples.y)
    assert found["nll"] == pytest.approx(lines(done[1])[-1]["nll"], abs=1e-6)


def test_sites_train_gaussian_adapters_on_tables_of_their_own(chosen, tmp_path):
    files = [write_table(tmp_path / f"{k}.csv", texts(40, seed=k)) for k in range(2)]
    nodes = [{"data-path": str(file), "name": f"ward {k}"} for k, file in enumerate(files)]
    settings = chosen(dataset="none", classes="bad,good", rule="RKLB", bayesian_layers=3)
    run(InlineGrid(client_app.app, nodes, settings.model_dump()), settings, tmp_path / "run")
    line = lines(tmp_path / "run")[-1]
    assert (line["admitted"], len(line["clients"])) == (2, 2)
    held = tensors(tmp_path / "run")
    assert sum(name.endswith("lora_B.default.weight_log_var") for name in held) == 2
