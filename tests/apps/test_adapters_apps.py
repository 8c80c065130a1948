"""Adapters through the two apps: they travel with the head, the pretrained weights do not."""

import shutil

import pytest
import torch
from every_method import night
from own_backbones import tiny
from runs_of import lines, low_rank, network, same, tensors, timeless_lines
from torch.func import functional_call

import client_app
import fedbary
from fedbary.errors import SettingError
from fedbary.predictive.networks import answering_draws, drawn_layers
from fedbary.settings.config import completed
from fedbary.settings.uses import require_used
from fedbary.tasks import task_of
from fedbary.variational.frozen import frozen_tensors
from server_app import run
from server_app.engine.inline import InlineGrid, run_inline

QUICK = {
    "engine": "inline", "device": "cpu", "pictures": False, "dataset": "own_data:bars",
    "clients": 3, "min_examples": 20, "rounds": 2, "local_epochs": 1, "samples": 2,
    "backbone": "own_backbones:tiny", "adapters": "lora", "rank": 4, "bayesian_layers": 0,
    "rule": "FedAvg", "lr": 0.1,
}  # fmt: skip
B = "body.0.lora_B.default.weight"
HEAD = {"head.output.weight", "head.output.bias"}


def chosen(**changes):
    return completed({**QUICK, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters") / "run"
    settings = chosen(evaluate_clients=1)
    run_inline(settings, folder)
    return settings, folder


def test_messages_hold_adapters_and_head_alone(done):
    settings, folder = done
    trains = network(settings).state_dict()
    assert trains.keys() == {B, *HEAD}
    numbers = sum(tensor.numel() for tensor in trains.values())
    for line in lines(folder)[1:]:
        assert all(4 * numbers <= size < 4 * numbers + 1000 for size in line["bytes"].values())


def test_the_pretrained_weights_and_a_stay_as_they_are(done):
    settings, folder = done
    start, whole = frozen_tensors(network(settings)), tensors(folder)
    assert all(torch.equal(whole[name], tensor) for name, tensor in start.items())
    assert torch.equal(whole["body.0.base_layer.weight"], tiny()[0][0].weight)
    assert "body.1.running_mean" in start and whole[B].abs().max() > 0


def test_a_run_that_is_loaded_answers_images_as_it_was_scored(done):
    settings, folder = done
    trained = fedbary.load(folder, own_code=True)
    examples = trained.evaluation_examples()
    found = trained.task.judged(trained.predict(examples), examples.y)
    assert found["nll"] == pytest.approx(lines(folder)[-1]["nll"], abs=1e-6)
    assert low_rank(trained.network).keys() == {"body.0"}


def test_a_run_goes_on_where_it_stopped(done, tmp_path):
    settings, folder = done
    shutil.copytree(folder, tmp_path / "run")
    for file in ("posterior", "checkpoint-0002"):
        (tmp_path / "run" / f"{file}.safetensors").unlink()
    run_inline(settings.model_copy(update={"resume": "last"}), tmp_path / "run")
    assert timeless_lines(tmp_path / "run") == timeless_lines(folder)
    assert same(tensors(tmp_path / "run"), tensors(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": "RKLB"},
        {"rule": "WB", "compress": "all"},
        {"method": "PVI"},
        {"inference": "ivon", "rule": "RKLB"},
        {"method": "FedLPA", "bayesian_layers": 0},
        {"method": "SCAFFOLD", "bayesian_layers": 0},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_every_kind_of_method_trains_them(changes, tmp_path):
    settings = chosen(**{"bayesian_layers": 2, **changes})
    run_inline(settings, tmp_path / "run")
    line = lines(tmp_path / "run")[-1]
    assert line["admitted"] == 3 and line["nll"] < 3
    start, whole = frozen_tensors(network(settings)), tensors(tmp_path / "run")
    assert all(torch.equal(whole[name], tensor) for name, tensor in start.items())
    (delta,) = low_rank(fedbary.load(tmp_path / "run", own_code=True).network).values()
    assert delta.abs().max() > 0


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, 1 / 2),  # 16 of 32 bits
        ({"bayesian_layers": 2, "rule": "RKLB"}, 3 / 8),  # 16 and 8 of 64 bits
    ],
)
def test_compressed_adapters_take_fewer_bytes_and_the_scores_stay(changes, part, tmp_path):
    wide, last = {"backbone": "own_backbones:wide", "dataset": "digits", "partition": "iid"}, []
    for compress in ("none", "all"):
        settings = chosen(**wide, compress=compress, lr=0.2, **changes)
        run_inline(settings, tmp_path / compress)
        last.append(lines(tmp_path / compress)[-1])
    plain, small = last
    for way in ("up", "down"):
        assert small["bytes"][way] < (part + 0.05) * plain["bytes"][way]
    assert plain["accuracy"] > 0.8
    assert small["nll"] == pytest.approx(plain["nll"], abs=0.002)


def test_the_body_is_asked_once_where_the_head_alone_is_gaussian():
    model, calls = network(chosen(bayesian_layers=1, rule="RKLB")), []
    model.body.register_forward_hook(lambda *_: calls.append(1))
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    found = answering_draws(model, 5, torch.Generator().manual_seed(1))(x)
    assert found.shape == (5, 3, 8) and len(calls) == 1
    for drawn_now, answer in zip(
        drawn_layers(model, 5, torch.Generator().manual_seed(1)), found, strict=True
    ):
        assert torch.allclose(functional_call(model, drawn_now, (x,)), answer, atol=1e-5)


@night  # by day the graph of point adapters, and drawn graphs of images
@pytest.mark.slow
def test_a_graph_of_gaussian_adapters_predicts_as_the_run_does(tmp_path):
    """It takes some 10 s, nearly all of them the exporter's."""
    onnxruntime = pytest.importorskip("onnxruntime")
    run_inline(chosen(bayesian_layers=2, rule="RKLB", rounds=1), tmp_path / "run")
    trained = fedbary.load(tmp_path / "run", own_code=True)
    trained.export(tmp_path / "model.onnx", 3)
    x = trained.evaluation_examples().x[:5]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (probs, *_) = session.run(["probs"], {"x": (x / 255).numpy()})
    assert probs == pytest.approx(trained.predict(x, 3).probs.numpy(), abs=1e-4)


@pytest.mark.slow
def test_the_graph_of_point_adapters_is_that_of_merged_weights(done, tmp_path):
    """It takes some 10 s, nearly all of them the exporter's."""
    onnx, onnxruntime = map(pytest.importorskip, ("onnx", "onnxruntime"))
    trained = fedbary.load(done[1], own_code=True)
    trained.export(tmp_path / "model.onnx")
    x = trained.evaluation_examples().x[:5]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (probs, *_) = session.run(["probs"], {"x": (x / 255).numpy()})
    assert probs == pytest.approx(trained.predict(x).probs.numpy(), abs=1e-4)
    nodes = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert nodes.count("Conv") == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 5}, "frozen weights as of"),
        ({"rank": 3}, "frozen weights as of"),
        ({"backbone": "own_backbones:other"}, "backbone"),
    ],
)
def test_a_site_with_other_frozen_weights_is_left_out_by_name(changes, said, tmp_path, caplog):
    settings = chosen(rounds=1)
    grid = InlineGrid(client_app.app, settings.clients, settings.model_dump())
    grid._contexts[min(grid.get_node_ids())].run_config = {**settings.model_dump(), **changes}
    run(grid, settings, tmp_path / "run")
    (line,) = lines(tmp_path / "run")[1:]
    assert len(line["clients"]) == 2
    assert said in caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"targets": "query"}, "targets: 'query'; expected all, or of 0"),
        ({"rank": 10}, "rank: 10; expected up to 9, the full rank of 0"),
        ({"bayesian_layers": 3, "rule": "RKLB"}, "from 0 to 2: layers of the 1 adapters"),
    ],
)
def test_what_the_backbone_does_not_allow_is_refused_before_the_run(changes, said):
    with pytest.raises(SettingError) as refused:
        task_of(chosen(**changes)).check(own_data=False)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "LDA"}, "adapters"),
        ({"features": 4}, "features"),
        ({"normalise": "channels"}, "normalise"),
        ({"model": "cnn"}, "model"),
        ({"adapters": "dora"}, "adapters"),
    ],
)
def test_settings_that_do_not_go_with_adapters_are_refused(changes, said):
    with pytest.raises(SettingError, match=said):
        chosen(**changes)


@pytest.mark.parametrize(
    ("settings", "named"), [({"adapters": "none"}, "rank"), ({"backbone": "none"}, "adapters")]
)
def test_words_without_use_are_refused(settings, named):
    with pytest.raises(SettingError, match=named):
        require_used({named: QUICK[named]}, chosen(**settings, model="linear"))
