"""A run's model as an ONNX graph predicts what the run's model predicts."""

import json
import sys

import numpy as np
import pytest
import torch
from conformal_by_hand import held_out_histogram
from every_method import NIGHT, night
from refusals import refused
from runs_of import INLINE

import fedbary
from fedbary.data.layout import Layout
from fedbary.data.standardise import Standardiser
from fedbary.errors import SettingError
from fedbary.predictive.conformal import Thresholds
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import completed
from fedbary.trained.onnx import of_known_levels, onnx_bytes, with_sets

QUICK = {**INLINE, "clients": 3, "rounds": 1, "local_epochs": 1}
RUNS = {
    "images": {"pixels": "signed"},
    "gated": {"method": "FedHBMixture"},
    "product": {"method": "FedAG", "predictive": "product"},
    "products": {"method": "PredBayes", "thinning": 1, "predictive": "product",
                 "server_fraction": 0.1},  # fmt: skip
    "tables": {"task": "tables", "class_weights": "balanced"},
    "tempered": {"task": "tables", "calibrate": "temperature", "holdout": 0.3},
    "numbers": {"task": "regression"},
    "glm": {"task": "glm", "intercepts": "common", "evaluate_on": "validation",
            "terms": "`mean area` spline(`mean texture`,3)"},  # fmt: skip
    "closed": {
        "protocol": "regression-vi", "model": "linear", "bayesian_layers": 1,
        "predictive": "closed", "local_epochs": 1,
    },
}  # fmt: skip


BY_DAY = ("images", "product", "numbers", "closed")
"""A graph of each kind; the others are made by night, each of the network and of draws.

The product is of the network of the means; a tempered one has sets below.
"""


def trained(name, folder):
    run_inline(completed({**QUICK, **RUNS[name]}), folder)
    return fedbary.load(folder)


def answered(file, x):
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    told = session.get_modelmeta().custom_metadata_map
    return dict(zip(names, session.run(None, {"x": x.numpy()}), strict=True)), told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "samples"),
    [(n, s) for n in RUNS for s in (0, 6) if NIGHT or n in BY_DAY and bool(s) != (n == "product")],
)
def test_the_graph_predicts_what_the_model_predicts(name, samples, tmp_path):
    model = trained(name, tmp_path / "run")
    held = model.export(tmp_path / "model.onnx", samples)
    known = model.task.evaluation_examples()
    for count in (1, 5):
        x = known.x[:count]
        seen = x.float() / 255 if x.dtype == torch.uint8 else x
        found, told = answered(tmp_path / "model.onnx", seen)
        expected = model.predict(x, samples)
        for field in found.keys() - {"networks"}:
            wanted = getattr(expected, field).numpy()
            np.testing.assert_allclose(found[field], wanted, rtol=1e-4, atol=2e-6)
        if "networks" in found and name not in ("gated", "product", "products", "tempered"):
            wanted = found.get("probs", found.get("mean"))
            np.testing.assert_allclose(found["networks"].mean(0), wanted, rtol=1e-4, atol=1e-5)
    assert json.loads(told["classes"]) == list(model.signature.classes)
    assert held == len(found.get("networks", ()))


@night  # by day the sets of a run's model, which are raps
@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_a_graph_makes_the_same_sets_of_probabilities(score, tmp_path):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 6, generator=generator)
    probs = logits.softmax(-1)
    y = torch.multinomial(probs, 1, generator=generator)[:, 0]
    by = Thresholds(0.9, held_out_histogram(score, probs, y, by_class=True))

    def graph(x):
        return {"probs": x.softmax(-1)}

    made = with_sets(graph, graph, by, score, lambda x: None)
    (tmp_path / "sets.onnx").write_bytes(onnx_bytes(made, logits[:2], {}))
    found, _ = answered(tmp_path / "sets.onnx", logits)
    assert found["set"].dtype == bool
    assert np.mean(found["set"] == by.sets(score, probs).numpy()) > 0.995  # on the edge of a bin


@pytest.mark.slow
def test_a_column_without_spread_is_0_in_the_graph(tmp_path):
    by = Standardiser(torch.tensor([1500.0, 1.0]).double(), torch.tensor([torch.inf, 2]).double())
    x = torch.tensor([[1200.0, 5.0], [1500.0, 1.0], [1800.0, 0.0]]).double()
    made = onnx_bytes(lambda x: {"seen": by.features(x)}, x[:2], {})
    (tmp_path / "seen.onnx").write_bytes(made)
    found, _ = answered(tmp_path / "seen.onnx", x)
    assert found["seen"].tolist() == [[0, 2], [0, 0], [0, -0.5]]


@pytest.mark.slow
def test_the_graph_has_the_intervals_of_the_model(tmp_path):
    """Some 5 seconds."""
    rows = [f"{k % 7 + k / 1e3},{'ab'[k % 2]},{k % 5 + k % 2 * (k % 11)}" for k in range(120)]
    (tmp_path / "rows.csv").write_text("\n".join(["x,ward,y", *rows]))
    changes = {
        "task": "regression", "method": "ConjugateGaussian", "model": "linear", "noise": "learned",
        "dataset": str(tmp_path / "rows.csv"), "holdout": 0.4, "conformal": 0.8,
        "conformal_by": "ward",
    }  # fmt: skip
    run_inline(completed({**QUICK, **changes}), tmp_path / "run")
    model = fedbary.load(tmp_path / "run")
    model.export(tmp_path / "model.onnx")
    x = model.task.evaluation_examples().x
    found, _ = answered(tmp_path / "model.onnx", x)
    for name, end in zip(("low", "high"), model.intervals(x), strict=True):
        np.testing.assert_allclose(found[name], end, rtol=1e-4, atol=1e-4)
    assert len(set(model.thresholds().bins.tolist())) == 2


@pytest.mark.slow
def test_the_graph_has_the_sets_of_the_model(tmp_path):
    """Some 10 seconds."""
    changes = {"conformal": 0.9, "conformal_score": "raps", "samples": 5}
    folder = tmp_path / "run"
    run_inline(completed({**QUICK, **RUNS["tempered"], **changes}), folder)
    model = fedbary.load(folder)
    of_site = {"level": 0.8, "site": "partition 1"}
    model.export(tmp_path / "model.onnx", **of_site)
    x = model.task.evaluation_examples().x
    found, _ = answered(tmp_path / "model.onnx", x)
    assert np.mean(found["set"] == model.sets(x, **of_site).numpy()) > 0.99
    np.testing.assert_allclose(found["probs"], model.predict(x).probs, rtol=1e-4, atol=2e-6)
    with pytest.raises(SettingError, match="samples: 3; expected 5 and seed 0, as"):
        model.export(tmp_path / "other.onnx", 3, **of_site)
    model.export(tmp_path / "other.onnx", 3)
    assert "set" not in answered(tmp_path / "other.onnx", x[:2])[0]


def test_the_graph_is_the_cpu_s_wherever_the_run_is_loaded(tmp_path, monkeypatch):
    model = trained("tables", tmp_path / "run")
    elsewhere = {"cpu": "cpu", "auto": "meta"}
    for module in ("tables", "_network"):
        monkeypatch.setattr(
            f"fedbary.tasks.{module}.torch_device", lambda s: torch.device(elsewhere[s.device])
        )
    model.export(tmp_path / "model.onnx", 2)
    x = model.task.evaluation_examples().x[:5]
    found, _ = answered(tmp_path / "model.onnx", x)
    monkeypatch.undo()
    np.testing.assert_allclose(found["probs"], model.predict(x, 2).probs, rtol=1e-4)


@pytest.mark.slow
def test_a_row_of_no_known_level_has_no_answer(tmp_path):
    layout = Layout((("age", ()), ("sex", ("f", "m"))), ("no", "yes"), "mean")

    def graph(x):
        probs = x[:, :2].nan_to_num().softmax(1)
        return {"probs": probs, "networks": probs[None], "set": probs > 0.5}

    x = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, torch.nan, torch.nan]]).double()
    (tmp_path / "m.onnx").write_bytes(onnx_bytes(of_known_levels(graph, layout), x, {}))
    found, _ = answered(tmp_path / "m.onnx", x)
    known = [True, False, False, True]
    assert np.isfinite(found["probs"]).all(1).tolist() == known
    assert np.isfinite(found["networks"][0]).all(1).tolist() == known
    assert found["set"].all(1).tolist() == [False, True, True, False]


def test_what_cannot_be_exported_is_one_line(tmp_path, monkeypatch):
    model = trained("tables", tmp_path / "run")
    refused("from 0 up", model.export, tmp_path / "model.onnx", -1)
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(r"fedbary\[onnx\]", model.export, tmp_path / "model.onnx")
    assert {file.name for file in tmp_path.iterdir()} == {"run"}
