"""A frozen body, or adapters in it, through the two apps: what trains travels, the rest stays."""

import shutil

import pytest
import torch
from every_method import EACH, night
from own_backbones import tiny
from own_models import OTHERWISE
from runs_of import SHORT, lines, low_rank, network, same, tensors, timeless_lines
from torch.func import functional_call

import fedbary
from fedbary import client_app
from fedbary.errors import SettingError
from fedbary.predictive.networks import answering_draws, drawn_layers
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import completed
from fedbary.settings.uses import require_used
from fedbary.tasks import task_of
from fedbary.variational.frozen import frozen_tensors

INLINE = {**SHORT, "clients": 3, "rounds": 2, "bayesian_layers": 0}
BODY = {**INLINE, "train_fraction": 0.3, "model": "own_models:pretrained", "lr": 0.01}
LORA = {
    **INLINE, "dataset": "own_data:bars", "min_examples": 20, "backbone": "own_backbones:tiny",
    "adapters": "lora", "rank": 4, "rule": "FedAvg", "lr": 0.1,
}  # fmt: skip
B = "body.0.lora_B.default.weight"
TRAIN = {
    "1.weight_mean": {"1.weight_mean", "1.weight_log_var", "1.bias"},
    B: {B, "head.output.weight", "head.output.bias"},
}
STATISTICS = {"0.1.running_mean", "0.4.running_var", "0.4.num_batches_tracked"}


def chosen(base, **changes):
    return completed({**base, **changes})


def made(tmp_path_factory, *args, **changes):
    folder = tmp_path_factory.mktemp("frozen") / "run"
    settings = chosen(*args, evaluate_clients=1, **changes)
    run_inline(settings, folder)
    return settings, folder


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """A run with a Gaussian head on a frozen body: its settings and its folder."""
    return made(tmp_path_factory, BODY, bayesian_layers=1)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """A run with adapters of point weights within a backbone."""
    return made(tmp_path_factory, LORA)


@pytest.fixture(params=["body", "adapters"])
def done(request):
    return request.getfixturevalue(request.param)


def kept(settings, folder):
    """The frozen tensors of a run's start, which its posterior holds as they were."""
    start, whole = frozen_tensors(network(settings)), tensors(folder)
    assert all(torch.equal(whole[name], tensor) for name, tensor in start.items())
    return start, whole


def test_messages_and_checkpoints_hold_what_trains(done):
    settings, folder = done
    trains = network(settings).state_dict()
    assert trains.keys() == TRAIN[next(name for name in TRAIN if name in trains)]
    numbers = sum(tensor.numel() for tensor in trains.values())
    for line in lines(folder)[1:]:
        assert all(4 * numbers <= size < 4 * numbers + 1000 for size in line["bytes"].values())
    arrays = {name for name in tensors(folder, "checkpoint-0002") if name.startswith("arrays.")}
    assert arrays == {f"arrays.{name}" for name in trains}


def test_what_is_frozen_does_not_change_and_is_written_with_what_trains(body, adapters):
    start, whole = kept(*body)
    assert start.keys() >= STATISTICS
    assert whole.keys() == start.keys() | network(body[0]).state_dict().keys()
    start, whole = kept(*adapters)
    assert torch.equal(whole["body.0.base_layer.weight"], tiny()[0][0].weight)
    assert "body.1.running_mean" in start and whole[B].abs().max() > 0


def test_a_run_that_is_loaded_predicts_by_the_frozen_weights_in_its_folder(done):
    """The function that made the network may since return another body."""
    settings, folder = done
    trained = fedbary.load(folder, own_code=True)
    examples = trained.evaluation_examples()
    found = trained.task.judged(trained.predict(examples, samples=100), examples.y)
    assert found["accuracy"] == pytest.approx(lines(folder)[-1]["accuracy"], abs=0.1)
    if settings.model_dump().get("adapters") == "lora":
        assert found["nll"] == pytest.approx(lines(folder)[-1]["nll"], abs=1e-6)
        assert low_rank(trained.network).keys() == {"body.0"}
    frozen = frozen_tensors(trained.network)
    assert all(torch.equal(t, tensors(folder)[n]) for n, t in frozen.items())


def test_a_run_goes_on_where_it_stopped(adapters, tmp_path):
    settings, folder = adapters
    shutil.copytree(folder, tmp_path / "run")
    for file in ("posterior", "checkpoint-0002"):
        (tmp_path / "run" / f"{file}.safetensors").unlink()
    run_inline(settings.model_copy(update={"resume": "last"}), tmp_path / "run")
    assert timeless_lines(tmp_path / "run") == timeless_lines(folder)
    assert same(tensors(tmp_path / "run"), tensors(folder))


OTHERS = {
    "SCAFFOLD": {}, "FedLPA": {}, "LastLayerLaplace": {}, "LDA": {}, "SWAG": {"local_epochs": 2},
    "FedWBA": {"particles": 3}, "FedBE": {"server_fraction": 0.1},
    "FedPPD": {"server_fraction": 0.1}, "FedLAW": {"server_fraction": 0.1},
    "PVI": {"inference": "laplace", "covariance": "kronecker"}, "pFedVem": {"bayesian_layers": 1},
    "DWC": {"bayesian_layers": 1}, "FedPop": {"bayesian_layers": 1}, "FALD": {}, "FedAdam": {},
    "FOLA": {}, "DSVGD": {"particles": 3, "server_steps": 5}, "FedPA": {"local_epochs": 4},
}  # fmt: skip
ADAPTED = [
    {"rule": "RKLB"}, {"rule": "WB", "compress": "all"}, {"method": "PVI"},
    {"inference": "ivon", "rule": "RKLB"}, {"method": "FedLPA", "bayesian_layers": 0},
    {"method": "SCAFFOLD", "inference": "curvature"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        *(
            (BODY, {"method": name, **own})
            for name, own in OTHERS.items()
            if name in {*EACH, "LDA"}
        ),
        *((LORA, {"bayesian_layers": 2, **changes}) for changes in ADAPTED),
    ],
    ids=lambda words: "-".join(map(str, words.values()))[-30:],
)
def test_every_kind_of_method_leaves_at_home_what_is_frozen(base, changes, tmp_path):
    settings = chosen(base, **changes)
    run_inline(settings, tmp_path / "run")
    line = lines(tmp_path / "run")[-1]
    assert line["admitted"] == 3 and line["nll"] < 3
    kept(settings, tmp_path / "run")
    if base is LORA:
        (delta,) = low_rank(fedbary.load(tmp_path / "run", own_code=True).network).values()
        assert delta.abs().max() > 0


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (
            BODY,
            {"model": "own_models:otherwise_pretrained"},
            "frozen weights as of the run's model",
        ),
        (LORA, {"seed": 5}, "frozen weights as of"),
        (LORA, {"rank": 3}, "frozen weights as of"),
        (LORA, {"backbone": "own_backbones:other"}, "backbone"),
    ],
)
def test_a_site_with_other_frozen_weights_is_left_out_by_name(
    base, changes, said, tmp_path, caplog
):
    settings = chosen(base, rounds=1)
    grid = InlineGrid(client_app.app, settings.clients, settings.model_dump())
    grid._contexts[min(grid.get_node_ids())].run_config = {**settings.model_dump(), **changes}
    run(grid, settings, tmp_path / "run")
    (line,) = lines(tmp_path / "run")[1:]
    assert len(line["clients"]) == 2
    assert said in caplog.text


def assert_graph_predicts(folder, file, scale, *samples):
    """It takes some 10 s, nearly all of them the exporter's."""
    onnxruntime = pytest.importorskip("onnxruntime")
    trained = fedbary.load(folder, own_code=True)
    trained.export(file, *samples)
    x = trained.evaluation_examples().x[:5]
    (probs, *_) = onnxruntime.InferenceSession(file).run(["probs"], {"x": (x / scale).numpy()})
    assert probs == pytest.approx(trained.predict(x, *samples).probs.numpy(), abs=1e-4)


@night  # by day the graph of point adapters, which has a body
@pytest.mark.slow
def test_the_graph_has_the_body(body, tmp_path):
    assert_graph_predicts(body[1], tmp_path / "model.onnx", 1, 3)


def test_a_run_does_not_go_on_with_another_body(body, tmp_path):
    settings, folder = body
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "posterior.safetensors").unlink()
    again = settings.model_copy(update={"resume": "last"})
    before = OTHERWISE.set(1.0)
    with pytest.raises(SettingError, match="frozen weights as of the run's model"):
        run_inline(again, tmp_path / "run")
    OTHERWISE.reset(before)
    run_inline(again, tmp_path / "run")
    assert lines(tmp_path / "run") == lines(folder)


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
        settings = chosen(LORA, **wide, compress=compress, lr=0.2, **changes)
        run_inline(settings, tmp_path / compress)
        last.append(lines(tmp_path / compress)[-1])
    plain, small = last
    for way in ("up", "down"):
        assert small["bytes"][way] < (part + 0.05) * plain["bytes"][way]
    assert plain["accuracy"] > 0.8
    assert small["nll"] == pytest.approx(plain["nll"], abs=0.002)


def test_the_body_is_asked_once_where_the_head_alone_is_gaussian():
    model, calls = network(chosen(LORA, bayesian_layers=1, rule="RKLB")), []
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
    run_inline(chosen(LORA, bayesian_layers=2, rule="RKLB", rounds=1), tmp_path / "run")
    assert_graph_predicts(tmp_path / "run", tmp_path / "model.onnx", 255, 3)


@pytest.mark.slow
def test_the_graph_of_point_adapters_is_that_of_merged_weights(adapters, tmp_path):
    onnx = pytest.importorskip("onnx")
    assert_graph_predicts(adapters[1], tmp_path / "model.onnx", 255)
    nodes = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert nodes.count("Conv") == 1


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (BODY, {"model": "own_models:untrainable"}, "something trains"),
        (LORA, {"targets": "query"}, "targets: 'query'; expected all, or of 0"),
        (LORA, {"rank": 10}, "rank: 10; expected up to 9, the full rank of 0"),
        (LORA, {"bayesian_layers": 3, "rule": "RKLB"}, "from 0 to 2: layers of the 1 adapters"),
        (LORA, {"method": "LDA"}, "adapters"),
        (LORA, {"features": 4}, "features"),
        (LORA, {"normalise": "channels"}, "normalise"),
        (LORA, {"model": "cnn"}, "model"),
        (LORA, {"adapters": "dora"}, "adapters"),
    ],
)
def test_what_the_network_does_not_allow_is_refused_before_the_run(base, changes, said):
    with pytest.raises(SettingError, match=said):
        task_of(chosen(base, **changes)).check(own_data=False)


@pytest.mark.parametrize(
    ("settings", "named"), [({"adapters": "none"}, "rank"), ({"backbone": "none"}, "adapters")]
)
def test_words_without_use_are_refused(settings, named):
    with pytest.raises(SettingError, match=named):
        require_used({named: LORA[named]}, chosen(LORA, **settings, model="linear"))
