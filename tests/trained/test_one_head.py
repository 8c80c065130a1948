"""Runs whose one head predicts: their epistemic part is not known, and never told as 0."""

import numpy as np
import pytest
from runs_of import rows
from runs_of_sums import chosen

import fedbary
from fedbary.commands.use import predict
from fedbary.data.images import load
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import task_of

HEADS = {
    "lda": {},
    "sites": {"method": "PVI", "inference": "laplace", "covariance": "kronecker",
              "bayesian_layers": 0},
    "drawn": {"method": "barycentre", "bayesian_layers": 1, "samples": 4, "local_epochs": 1},
}  # fmt: skip


@pytest.fixture(scope="module", params=HEADS)
def done(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    digits = load("digits", folder, False).x_test.numpy()[:40]
    np.savez(folder / "new.npz", x=digits)
    run_inline(chosen("pixels", **HEADS[request.param]), folder / "run")
    return request.param, folder


def test_its_column_is_empty_and_the_command_says_why(done, tmp_path, capsys):
    name, folder = done
    predict(folder / "run", folder / "new.npz", output=tmp_path / "out.csv")
    table = rows(tmp_path / "out.csv")
    told = [row["epistemic uncertainty"] for row in table]
    one = "epistemic uncertainty: left empty, as one network predicts" in capsys.readouterr().err
    assert one == (name != "drawn")
    assert (set(told) == {""}) if one else min(map(float, told)) > 0
    assert all(float(row["total uncertainty"]) > 0 for row in table)
    trained = fedbary.load(folder / "run")
    predict(folder / "run", folder / "new.npz", samples=0, output=tmp_path / "mean.csv")
    assert "left empty" in capsys.readouterr().err
    found = trained.predict(trained.evaluation_examples())
    assert bool(found.epistemic.isnan().all()) == one
    assert bool(found.tempered(2.0).epistemic.isnan().all()) == one


def test_sets_that_are_all_empty_are_said_to_be(tmp_path, capsys):
    """All classes are told apart, so that examples halfway between two have no class at all."""
    draw, y = np.random.default_rng(0), np.arange(300) % 3
    x = (8 * np.eye(3)[y] + draw.normal(size=(300, 3))).astype(np.float32)
    held = {"x_train": x[60:], "y_train": y[60:], "x_test": x[:60], "y_test": y[:60]}
    np.savez(tmp_path / "blobs.npz", **held)
    np.savez(tmp_path / "between.npz", x=4 * (1 - np.eye(3, dtype=np.float32)))
    np.savez(tmp_path / "new.npz", x=x[:20])
    data = {"dataset": str(tmp_path / "blobs.npz"), "conformal": 0.9, "holdout": 0.3}
    run_inline(chosen("pixels", min_examples=10, **data), tmp_path / "run")
    for name in ("between", "new"):
        predict(tmp_path / "run", tmp_path / f"{name}.npz", output=tmp_path / f"{name}.csv")
        said = "set: all are empty" in capsys.readouterr().err
        sizes = [int(row["set size"]) for row in rows(tmp_path / f"{name}.csv")]
        assert said == (not any(sizes)) == (name == "between")


@pytest.mark.parametrize("task", ["classification", "tables", "regression"])
def test_an_nll_of_zero_has_no_sign(task):
    scores = {"accuracy": 1.0, "nll": -1e-8, "ece": 0.0, "auroc": 1.0, "sensitivity": 1.0,
              "rmse": 0.0, "coverage_90": 1.0}  # fmt: skip
    assert "NLL 0.0000" in task_of(resolve({"task": task})).said(scores)


def test_a_head_that_is_too_sure_is_led_to_a_temperature(tmp_path, caplog):
    caplog.set_level("INFO")
    run_inline(chosen("pixels"), tmp_path / "plain")
    (said,) = [line for line in caplog.messages if "The probabilities are too sure" in line]
    assert "Try calibrate=temperature" in said
    caplog.clear()
    run_inline(chosen("pixels", calibrate="temperature"), tmp_path / "calibrated")
    assert "The probabilities are too" not in caplog.text
    nlls = [fedbary.load(tmp_path / name).line["nll"] for name in ("plain", "calibrated")]
    assert f"the NLL is {nlls[0]:.4f}, and " in said and nlls[1] < nlls[0]
