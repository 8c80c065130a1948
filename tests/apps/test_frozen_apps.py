"""A network with a frozen body through the two apps: the head travels, the body stays as it is."""

import shutil

import pytest
import torch
from every_method import EACH, night
from own_models import OTHERWISE
from runs_of import lines, network, tensors

import client_app
import fedbary
from fedbary.errors import SettingError
from fedbary.settings.config import completed
from fedbary.tasks import task_of
from fedbary.variational.frozen import frozen_tensors
from server_app import run
from server_app.engine.inline import InlineGrid, run_inline

QUICK = {
    "engine": "inline", "device": "cpu", "pictures": False, "clients": 3, "rounds": 2,
    "local_epochs": 1, "samples": 2, "train_fraction": 0.3, "model": "own_models:pretrained",
    "bayesian_layers": 0, "lr": 0.01,
}  # fmt: skip
KINDS = {
    "SCAFFOLD": {}, "FedLPA": {}, "LastLayerLaplace": {}, "LDA": {}, "SWAG": {"local_epochs": 2},
    "FedWBA": {"particles": 3}, "FedBE": {"server_fraction": 0.1},
    "FedPPD": {"server_fraction": 0.1}, "FedLAW": {"server_fraction": 0.1},
    "PVI": {"inference": "laplace", "covariance": "kronecker"}, "pFedVem": {"bayesian_layers": 1},
    "DWC": {"bayesian_layers": 1}, "FedPop": {"bayesian_layers": 1}, "FALD": {}, "FedAdam": {},
    "FOLA": {}, "DSVGD": {"particles": 3, "server_steps": 5}, "FedPA": {"local_epochs": 4},
}  # fmt: skip


def chosen(**changes):
    return completed({**QUICK, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen") / "run"
    settings = chosen(bayesian_layers=1, evaluate_clients=1)
    run_inline(settings, folder)
    return settings, folder


def test_messages_and_checkpoints_hold_what_trains(done):
    settings, folder = done
    head = network(settings).state_dict()
    assert head.keys() == {"1.weight_mean", "1.weight_log_var", "1.bias"}
    numbers = sum(tensor.numel() for tensor in head.values())
    (_, *rounds) = lines(folder)
    for line in rounds:
        assert all(4 * numbers <= size < 4 * numbers + 1000 for size in line["bytes"].values())
    arrays = {name for name in tensors(folder, "checkpoint-0002") if name.startswith("arrays.")}
    assert arrays == {f"arrays.{name}" for name in head}


def test_the_body_does_not_change_and_is_written_with_the_head(done):
    settings, folder = done
    start, whole = frozen_tensors(network(settings)), tensors(folder)
    assert {"0.1.running_mean", "0.4.running_var", "0.4.num_batches_tracked"} <= start.keys()
    assert whole.keys() == start.keys() | network(settings).state_dict().keys()
    assert all(torch.equal(whole[name], tensor) for name, tensor in start.items())


def test_a_run_that_is_loaded_predicts_by_the_body_in_its_folder(done):
    """The function that made the network may since return another body."""
    settings, folder = done
    trained = fedbary.load(folder, own_code=True)
    examples = trained.evaluation_examples()
    found = trained.task.judged(trained.predict(examples, samples=100), examples.y)
    assert found["accuracy"] == pytest.approx(lines(folder)[-1]["accuracy"], abs=0.1)
    assert all(
        torch.equal(t, tensors(folder)[n]) for n, t in frozen_tensors(trained.network).items()
    )


@night  # by day tests/tasks/test_backbones has a graph with a body
@pytest.mark.slow
def test_the_graph_has_the_body(done, tmp_path):
    """It takes some 10 s, nearly all of them the exporter's."""
    onnxruntime = pytest.importorskip("onnxruntime")
    trained = fedbary.load(done[1], own_code=True)
    trained.export(tmp_path / "model.onnx", 3)
    x = trained.evaluation_examples().x[:5]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (probs, *_) = session.run(["probs"], {"x": x.numpy()})
    assert probs == pytest.approx(trained.predict(x, 3).probs.numpy(), abs=1e-4)


@pytest.mark.parametrize("method", [name for name in KINDS if name in {*EACH, "LDA"}])
def test_methods_of_every_kind_leave_the_body_at_home(method, tmp_path):
    settings = chosen(method=method, **KINDS[method])
    run_inline(settings, tmp_path / "run")
    line = lines(tmp_path / "run")[-1]
    assert line["admitted"] == 3 and line["nll"] < 3
    start, whole = frozen_tensors(network(settings)), tensors(tmp_path / "run")
    assert all(torch.equal(whole[name], tensor) for name, tensor in start.items())


def test_a_site_with_another_body_is_left_out_by_name(tmp_path, caplog):
    settings = chosen(rounds=1)
    grid = InlineGrid(client_app.app, settings.clients, settings.model_dump())
    first = min(grid.get_node_ids())
    grid._contexts[first].run_config = {
        **settings.model_dump(), "model": "own_models:otherwise_pretrained",
    }  # fmt: skip
    run(grid, settings, tmp_path / "run")
    (line,) = lines(tmp_path / "run")[1:]
    assert len(line["clients"]) == 2
    assert "frozen weights as of the run's model" in caplog.text


def test_a_run_does_not_go_on_with_another_body(done, tmp_path):
    settings, folder = done
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "posterior.safetensors").unlink()
    again = settings.model_copy(update={"resume": "last"})
    before = OTHERWISE.set(1.0)
    with pytest.raises(SettingError, match="frozen weights as of the run's model"):
        run_inline(again, tmp_path / "run")
    OTHERWISE.reset(before)
    run_inline(again, tmp_path / "run")
    assert lines(tmp_path / "run") == lines(folder)


def test_a_network_of_which_nothing_trains_is_refused():
    with pytest.raises(SettingError, match="something trains"):
        task_of(chosen(model="own_models:untrainable")).check(own_data=False)
