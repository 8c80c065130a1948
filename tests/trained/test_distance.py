"""The relative Mahalanobis distance of a run: recorded, loaded, and in the table of predictions."""

import numpy as np
import pytest
from runs_of import lines, rows
from runs_of_sums import chosen

import fedbary
from fedbary.commands.use import predict
from fedbary.data.images import load
from fedbary.scores.metrics import auroc
from fedbary.server_app.engine.inline import run_inline
from fedbary.tasks._images import ood_images


def test_a_run_records_it_and_its_folder_gives_it_again(tmp_path, monkeypatch):
    settings = chosen("pixels", ood_dataset="own_data:bars")
    run_inline(settings, tmp_path / "run")
    trained = fedbary.load(tmp_path / "run", own_code=True)
    here = trained.predict(trained.evaluation_examples()).distance
    there = trained.predict(ood_images(settings)).distance
    recorded = lines(tmp_path / "run")[-1]["ood"]["auroc_mahalanobis"]
    assert auroc(here, there) == pytest.approx(recorded, abs=1e-9) and recorded > 0.8

    digits = load("digits", tmp_path, False).x_test.numpy()
    np.savez(tmp_path / "new.npz", x=digits)
    monkeypatch.chdir(tmp_path)
    predict(tmp_path / "run", tmp_path / "new.npz", own_code=True)
    told = [float(row["relative Mahalanobis distance"]) for row in rows()]
    np.testing.assert_allclose(told, here.numpy(), rtol=1e-3, atol=1e-3)


def test_other_methods_have_none(tmp_path):
    run_inline(chosen("images", method="FedProx", local_epochs=1), tmp_path / "run")
    trained = fedbary.load(tmp_path / "run")
    assert trained.predictive.background is None
    assert trained.predict(trained.evaluation_examples()).distance is None
