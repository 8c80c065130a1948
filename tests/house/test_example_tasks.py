"""The examples of tasks of one's own: a file each, which needs nothing else."""

import importlib
import json
import math
import sys
from pathlib import Path

import forked
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import ran
from runs_of import SHORT
from sklearn.metrics import f1_score, jaccard_score, roc_auc_score
from typer.testing import CliRunner

import fedbary
from fedbary import client_app
from fedbary.commands.cli import app
from fedbary.errors import SettingError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TASKS = {"segmentation": "Segmentation", "multilabel": "MultiLabel"}
QUICK = {**SHORT, "clients": 2, "rounds": 2, "local_epochs": 3, "partition": "iid"}
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@pytest.fixture(autouse=True, scope="module")
def importable():
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


def example(name):
    return importlib.import_module(name)


def named(name):
    return {"task": f"{name}:{TASKS[name]}"}


@pytest.fixture(scope="module", params=TASKS)
def ended(request, tmp_path_factory):
    """A run that `fedbary simulate` has made, its folder, and some of its test set in a file."""
    folder = tmp_path_factory.mktemp("ended")
    words = {**QUICK, **named(request.param), "pictures": True, "output": "run"}
    words = [f"{key}={value}" for key, value in words.items()]
    ran(forked.command(), "simulate", *words, cwd=folder, PYTHONPATH=str(EXAMPLES))
    trained = fedbary.load(folder / "run", own_code=True)
    held = trained.task.evaluation_examples()
    np.savez(folder / "new.npz", x=held.x[:7].numpy(), y=held.y[:7].numpy())
    return request.param, folder, trained, held


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).output


@pytest.mark.slow
def test_it_learns_more_than_the_commonest_answer(ended):
    name, folder, trained, held = ended
    line = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    shares = torch.bincount(held.y.flatten()) / held.y.numel()
    assert line["accuracy"] > shares.max() + 0.02
    assert line["nll"] < -(shares * shares.log()).nansum()
    assert "failing" not in line and all(
        math.isfinite(line[score]) for score, *_ in trained.task.curves
    )
    assert (folder / "run" / "reliability.png").exists()
    assert (folder / "run" / "masks.png").exists() == (name == "segmentation")


@pytest.mark.slow
def test_its_predictions_are_probabilities_and_a_row_an_example(ended, monkeypatch):
    name, folder, trained, held = ended
    monkeypatch.chdir(folder)
    found, classes = trained.predict(held.x[:7]), trained.signature.classes
    sides = held.y.shape[1:]
    several = (len(classes),) if name == "segmentation" else (2,)
    assert found.probs.shape == (7, *sides, *several) and found.entropy.shape == (7, *sides)
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(7, *sides))
    invoke("predict", "run", "new.npz", "--own-code", "--force")
    table = pd.read_csv("predictions.csv")
    assert len(table) == 7
    if name == "segmentation":
        shares = table[[f"share({each})" for each in classes]]
        np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-4)
    else:
        np.testing.assert_allclose(table["p(0)"], found.probs[:, 0, 1], rtol=1e-4)


@pytest.mark.slow
def test_it_is_scored_on_labelled_examples_as_in_the_run(ended, monkeypatch):
    _, folder, trained, held = ended
    monkeypatch.chdir(folder)
    invoke("evaluate", "run", "new.npz", "--own-code", "--force")
    table = pd.read_csv(Path("evaluation", "scores.csv"))
    expected = trained.task.judged(trained.predict(held.x[:7]), held.y[:7])
    for score, value in expected.items():
        np.testing.assert_allclose(table[score][0], value, rtol=1e-3, atol=1e-5)
    invoke("report", "run", "--own-code")
    for page in (Path("evaluation", "report.md"), Path("run", "report.md")):
        assert "Every pixel or label counts by itself" in page.read_text()
    with pytest.raises(SettingError, match="several classes"):
        invoke("predict", "run", "new.npz", "--own-code", "--error-rate", 0.1, "--force")


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_sites_may_have_data_of_their_own(name, tmp_path):
    chosen = resolve({**named(name), **QUICK, "holdout": 0.2, "local_epochs": 1, "rounds": 1})
    module = example(name)
    held = (module.masks_of if name == "segmentation" else module.labelled)(chosen.dataset)
    nodes = []
    for site in range(2):
        rows, path = slice(40 * site, 40 * (site + 1)), tmp_path / f"site{site}.npz"
        np.savez(path, x=held.x_train[rows].numpy(), y=held.y_train[rows].numpy())
        nodes.append({"data-path": str(path), "name": path.stem})
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, tmp_path / "run")
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert [client["num-examples"] for client in line["clients"]] == [32, 32]
    assert all(math.isfinite(client["nll"]) for client in line["held_out"]["clients"])


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("segmentation", {"method": "FedBE"}, "it needs one class an example"),
        ("multilabel", {"method": "FedPPD"}, "it needs one class an example"),
        ("multilabel", {"conformal": 0.9}, "conformal: .*no value: task=multilabel:MultiLabel"),
        ("multilabel", {"threshold": 1}, "^threshold: 1.* to below 1 for task=multilabel"),
        ("segmentation", {"keep_best": "auroc"}, "^keep_best: .* iou for task=segmentation"),
    ],
)
def test_what_does_not_fit_it_is_refused(name, words, said):
    with pytest.raises(SettingError, match=said):
        resolve({**named(name), **words})


def test_the_sigmoid_of_a_label_is_its_probability_and_the_loss_its_likelihood():
    task = example("multilabel").MultiLabel(resolve(named("multilabel")))
    logits, y = torch.randn(5, 3), torch.randint(0, 2, (5, 3))
    both = task.adjusting({})(logits).softmax(-1)
    torch.testing.assert_close(both[..., 1], logits.sigmoid())
    likelihood = both.gather(-1, y[..., None])[..., 0].prod(1)
    torch.testing.assert_close(task.loss({})(logits, y), -likelihood.log().mean())


def test_a_mask_is_dealt_by_its_largest_object():
    masks = torch.zeros(4, 3, 3, dtype=torch.int64)
    masks[1, 0, 0], masks[2, 0], masks[2, 1, :2], masks[3] = 2, 1, 2, 3
    assert example("segmentation").most_seen(masks).tolist() == [0, 2, 1, 3]


@given(seeds, st.integers(2, 5), st.integers(1, 4), st.floats(0, 1))
def test_the_mean_iou_is_scikit_learn_s_over_classes_that_are_there(rng, classes, n, right):
    labels = rng.integers(0, rng.integers(1, classes + 1), (n, 3, 4))
    found = np.where(rng.random(labels.shape) < right, labels, rng.integers(0, classes, (n, 3, 4)))
    flat = labels.ravel(), found.ravel()
    expected = jaccard_score(*flat, labels=np.union1d(*flat), average="macro", zero_division=0)
    result = example("segmentation").mean_iou(torch.tensor(found), torch.tensor(labels), classes)
    assert result == pytest.approx(expected)


@given(seeds, st.integers(1, 4), st.integers(1, 12), st.floats(0, 1))
def test_f1_and_auroc_are_scikit_learn_s_over_labels_that_have_them(rng, labels, n, share):
    y, probs = (rng.random((n, labels)) < share).astype(int), rng.integers(0, 5, (n, labels)) / 4
    found, module = (probs > 0.5).astype(int), example("multilabel")
    each = [f1_score(y[:, k], found[:, k]) for k in range(labels) if (y + found)[:, k].any()]
    result = module.macro_f1(torch.tensor(found), torch.tensor(y))
    assert result == pytest.approx(np.mean(each)) if each else math.isnan(result)
    both = [roc_auc_score(y[:, k], probs[:, k]) for k in range(labels) if 0 < y[:, k].sum() < n]
    result = module.macro_auroc(torch.tensor(probs), torch.tensor(y))
    assert result == pytest.approx(np.mean(both)) if both else math.isnan(result)
