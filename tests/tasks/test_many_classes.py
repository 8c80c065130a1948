"""Tasks whose examples have several classes: of their pixels, or any labels together."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from every_method import night
from torch import nn
from typer.testing import CliRunner

import client_app
import fedbary
from fedbary.commands.cli import app
from fedbary.data.images import load as load_images
from fedbary.errors import SettingError
from fedbary.models import build
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Draws, kind_of
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from server_app import run
from server_app.engine.inline import InlineGrid, run_inline

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"engine": "inline", "pictures": False, "clients": 2, "rounds": 1, "local_epochs": 1}
QUICK |= {"samples": 2, "train_fraction": 0.1, "partition": "iid"}
TASKS = ("segmentation", "multilabel")
every_task = pytest.mark.parametrize("task", TASKS)


def settings(task, **changes):
    return resolve({"task": task, **QUICK, **changes})


def tall_unet(shape, outputs):
    """A network of one's own that answers with a logit a class for each pixel."""
    return nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.Conv2d(4, outputs, 1))


@pytest.fixture(scope="module", params=TASKS)
def ended(request, tmp_path_factory):
    """A run of a task that has ended, its folder, and the images of its test set in a file."""
    folder = tmp_path_factory.mktemp("ended")
    chosen = settings(request.param)
    run_inline(chosen, folder / "run")
    held = load_images("shapes", folder, False, labels=task_of(chosen).labels)
    np.savez(folder / "new.npz", x=held.x_test[:7].numpy(), y=held.y_test[:7].numpy())
    return request.param, folder, held


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).output


@pytest.mark.slow
def test_its_predictions_are_probabilities_and_a_row_an_example(ended, monkeypatch):
    task, folder, held = ended
    monkeypatch.chdir(folder)
    trained = fedbary.load(folder / "run")
    found = trained.predict(held.x_test[:7])
    sides = (16, 16, 4) if task == "segmentation" else (3, 2)
    assert found.probs.shape == (7, *sides) and found.entropy.shape == (7, *sides[:-1])
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(7, *sides[:-1]))
    invoke("predict", folder / "run", folder / "new.npz", "--force")
    table = pd.read_csv(folder / "predictions.csv")
    assert len(table) == 7
    if task == "segmentation":
        shares = table[[f"share({name})" for name in held.classes]]
        np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-4)
    else:
        np.testing.assert_allclose(table["p(disc)"], found.probs[:, 0, 1], rtol=1e-4)
        assert [str(row) for row in table["labels"].fillna("")] == [
            ", ".join(np.array(held.classes)[row]) for row in found.probs[..., 1].numpy() > 0.5
        ]


@pytest.mark.slow
def test_it_is_scored_on_labelled_examples_as_in_the_run(ended, monkeypatch):
    task, folder, held = ended
    monkeypatch.chdir(folder)
    invoke("evaluate", folder / "run", folder / "new.npz", "--force")
    table = pd.read_csv(folder / "evaluation" / "scores.csv")
    trained = fedbary.load(folder / "run")
    expected = trained.task.judged(trained.predict(held.x_test[:7]), held.y_test[:7])
    for name, value in expected.items():
        np.testing.assert_allclose(table[name][0], value, rtol=1e-3, atol=1e-5)
    with pytest.raises(SettingError, match="several classes"):
        invoke("predict", folder / "run", folder / "new.npz", "--error-rate", 0.1, "--force")


@pytest.mark.slow
@night  # by day the graphs of images, tables, numbers and texts
def test_its_graph_predicts_as_it_does(ended):
    onnxruntime = pytest.importorskip("onnxruntime")
    _, folder, held = ended
    trained = fedbary.load(folder / "run")
    trained.export(folder / "model.onnx", 2)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    found = session.run(["probs"], {"x": held.x_test[:5].numpy()})[0]
    np.testing.assert_allclose(found, trained.predict(held.x_test[:5], 2).probs, atol=2e-5)


@pytest.mark.slow
@every_task
def test_sites_with_data_of_their_own_score_where_the_server_has_none(task, tmp_path):
    held = load_images("shapes", tmp_path, False, labels=task_of(settings(task)).labels)
    nodes = []
    for site in range(2):
        rows = slice(40 * site, 40 * (site + 1))
        path = tmp_path / f"site{site}.npz"
        np.savez(path, x=held.x_train[rows].numpy(), y=held.y_train[rows].numpy())
        nodes.append({"data-path": str(path), "name": path.stem})
    given = {"dataset": "none", "input_shape": "1x16x16", "train_fraction": 1.0, "holdout": 0.2}
    chosen = settings(task, classes=",".join(held.classes), **given)
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, tmp_path / "run")
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert all(math.isfinite(line[name]) for name, *_ in task_of(chosen).curves)
    assert [client["num-examples"] for client in line["clients"]] == [32, 32]


def test_the_sigmoid_of_a_label_is_its_probability_and_the_loss_its_likelihood():
    task = task_of(settings("multilabel"))
    logits, y = torch.randn(5, 3), torch.randint(0, 2, (5, 3))
    both = task.adjusting({})(logits).softmax(-1)
    torch.testing.assert_close(both[..., 1], logits.sigmoid())
    likelihood = both.gather(-1, y[..., None])[..., 0].prod(1)
    torch.testing.assert_close(task.loss({})(logits, y), -likelihood.log().mean())


def test_the_u_net_sees_around_each_pixel_and_answers_at_its_place():
    net = build("unet", (1, 16, 24), 3, 0).eval()
    x = torch.rand(1, 1, 16, 24, requires_grad=True)
    answer = net(x)
    assert answer.shape == (1, 3, 16, 24)
    (around,) = torch.autograd.grad(answer[0, 0, 8, 8], x)
    assert around[0, 0, 8, 8] != 0 and around[0, 0, 2, 2] != 0
    with pytest.raises(SettingError, match="multiples of 4"):
        build("unet", (1, 10, 16), 3, 0)


@pytest.mark.parametrize("kind", ["auto", "montecarlo", "product", "members"])
def test_every_way_to_predict_takes_classes_of_pixels(kind):
    net = build("unet", (1, 8, 8), 3, 0, 1)
    states = [build("unet", (1, 8, 8), 3, seed, 1).state_dict() for seed in range(2)]
    together = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    held, generator = Predictive(net.state_dict(), members=together), torch.Generator()
    found = kind_of(kind)().predict(
        net, torch.rand(3, 1, 8, 8), held, Draws(4, generator.manual_seed(0)),
        adjusted=lambda answer: answer.movedim(2, -1),
    )  # fmt: skip
    assert found.probs.shape == (3, 8, 8, 3)
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(3, 8, 8))


@pytest.mark.slow
def test_a_network_of_ones_own_segments_where_it_answers_by_pixel(tmp_path):
    run_inline(settings("segmentation", model="test_many_classes:tall_unet"), tmp_path / "run")
    with pytest.raises(SettingError, match=r"shape \(1, 4, 16, 16\)"):
        task_of(settings("segmentation", model="own_models:normed")).check(False)


@pytest.mark.parametrize(
    ("task", "change", "said"),
    [
        ("segmentation", {"model": "cnn"}, "unet or a network of yours"),
        ("segmentation", {"augment": "flip"}, "masks would not move along"),
        ("segmentation", {"method": "FedBE"}, "it needs one class"),
        ("multilabel", {"method": "FedPPD"}, "it needs one class"),
        ("multilabel", {"model": "unet"}, "each pixel's class"),
        ("classification", {"model": "unet"}, "each pixel's class"),
        ("classification", {"dataset": "shapes"}, "digits"),
        ("tables", {"model": "unet"}, "mlp, linear"),
        ("segmentation", {"dataset": "digits"}, "shapes"),
        ("segmentation", {"keep_best": "auroc", "evaluate_on": "validation"}, "iou"),
    ],
)
def test_what_does_not_fit_a_task_is_refused(task, change, said):
    with pytest.raises(SettingError, match=said):
        resolve({"task": task, **change})


@every_task
def test_pictures_by_class_are_no_labels_of_these_tasks(task, tmp_path):
    with pytest.raises(SettingError, match=r"y_train: 'int64 of 1 dim"):
        task_of(settings(task, dataset="own_data:bars")).check(False)


@pytest.mark.slow
def test_the_page_s_example_of_own_masks_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "howto" / "pixels.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    marked = f"<!-- run by tests/tasks/{Path(__file__).name} -->"
    (commands,) = re.findall(rf"{marked}\n```bash\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    for line in commands.splitlines():
        command, verb, *words = line.split()
        assert command == "fedbary"
        if verb == "simulate":
            given = dict(word.split("=") for word in words)
            short = QUICK | {"train_fraction": 1.0, "min_examples": 1}
            run_inline(resolve({**short, **given}), tmp_path / given["output"])
        else:
            invoke(verb, *words)
    assert (tmp_path / "predictions.csv").exists() and (tmp_path / "evaluation").is_dir()
