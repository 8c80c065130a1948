"""An exported folder predicts what the run's model predicts, in a process without fedbary."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from refusals import refused
from safetensors.numpy import load_file

from fedbary import load
from fedbary.commands.use import export
from fedbary.report.card import CARD, OPEN
from fedbary.report.report import write_report
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve

QUICK = {"engine": "inline", "clients": 2, "rounds": 1, "pictures": False, "samples": 5}
TABLE = {"dataset": "rows.csv", "target": "died", "partition": "iid"}
RISK = {"holdout": 0.3, "calibrate": "temperature", "conformal": 0.8, "missing": "indicator"}
KINDS = {
    "risk": {"task": "tables", **TABLE, **RISK, "leave_out": "days"},
    "images": {"dataset": "digits", "model": "mlp"},
    "numbers": {"task": "regression", **TABLE, "target": "days", "missing": "mean"},
    "coefficients": {"task": "glm", **TABLE, "terms": "x ward", "rounds": 9},
    "survival": {
        "task": "survival", **TABLE, "target": "days", "event": "died=yes", "terms": "x ward",
        "rounds": 9,
    },
}  # fmt: skip
pytestmark = pytest.mark.slow

ALONE = """
import json, sys
sys.modules["fedbary"] = sys.modules["torch"] = None
import numpy, pandas
for line in sys.stdin:
    place, rows, answers = json.loads(line)
    sys.path.insert(0, place)
    sys.modules.pop("fedbary_model", None)
    from fedbary_model import Model
    model, said = Model(place), ""
    if rows.endswith("npy"):
        rows = numpy.load(rows)
    else:
        rows = pandas.read_csv(rows, dtype=str, keep_default_na=False)
    try:
        pandas.DataFrame(model.predict(rows)).to_csv(answers, index=False)
    except ValueError as error:
        said = str(error)
    print(json.dumps(said), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("exported")
    rng = np.random.default_rng(0)
    x, ward = rng.normal(size=400).round(3), rng.choice(["Süd", "ost", "west"], 400)
    died = np.where(rng.random(400) < 1 / (1 + np.exp(1 - 1.5 * x)), "yes", "no")
    days = rng.exponential(300 * np.exp(-x / 2)).round(1) + 0.1
    table = pd.DataFrame({"x": x, "ward": ward, "days": days, "died": died}).astype(str)
    table["z"] = rng.normal(size=400).astype(str)
    table["code"] = rng.choice(["01", "02", "10"], 400)
    table.to_csv(place / "whole.csv", index=False)
    table.loc[::7, "x"], table.loc[3::9, "ward"] = "", "NA"
    table.to_csv(place / "rows.csv", index=False)
    return place


@pytest.fixture(scope="module")
def exported(folder):
    """The exported folder of a kind of run, made once."""
    made = {}

    def of(kind):
        if kind not in made:
            words = {**QUICK, **KINDS[kind]}
            if "csv" in words.get("dataset", ""):
                words["dataset"] = str(folder / words["dataset"])
            run_inline(resolve(words), folder / kind)
            export(folder / kind, folder / f"{kind}-model")
            made[kind] = folder / f"{kind}-model"
        return made[kind]

    return of


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The answers, or the error's line, of a process that cannot import fedbary."""
    place = tmp_path_factory.mktemp("alone")
    with (
        open(place / "errors", "w+") as errors,
        subprocess.Popen(
            [sys.executable, "-c", ALONE], cwd=place, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        ) as process,
    ):  # fmt: skip

        def answered(model, rows):
            asked = [str(model), str(rows), str(place / "answers.csv")]
            print(json.dumps(asked), file=process.stdin, flush=True)
            said = json.loads(process.stdout.readline())
            return said or pd.read_csv(place / "answers.csv", keep_default_na=False)

        yield answered
        process.stdin.close()
        assert process.wait() == 0 and not (place / "errors").read_text()


@pytest.mark.parametrize("kind", ["risk", "numbers", "survival"])
def test_rows_get_the_run_s_predictions(kind, exported, folder, alone):
    rows = folder / ("whole.csv" if kind == "survival" else "rows.csv")
    found, trained = alone(exported(kind), rows), load(folder / kind)
    examples = trained.read(rows)
    expected = trained.predict(examples)
    if kind == "numbers":
        np.testing.assert_allclose(found["mean"], expected.mean, rtol=1e-4)
        np.testing.assert_allclose(found["std"], expected.var.sqrt(), rtol=1e-4)
    else:
        probs = found[[name for name in found if name.startswith("p(")]].to_numpy(float)
        np.testing.assert_allclose(probs, expected.probs, rtol=1e-4)
    if kind == "risk":
        sets = trained.sets(examples)
        held = torch.tensor(
            [["no" in s, "yes" in s] for s in found["set"].str.split(" | ", regex=False)]
        )
        assert (held == sets).double().mean() > 0.99


def test_images_get_the_run_s_predictions(exported, folder, alone, tmp_path):
    place = exported("images")
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "x.npy", x.numpy())
    found = alone(place, tmp_path / "x.npy")
    expected = load(folder / "images").predict(x)
    np.testing.assert_allclose(found[[f"p({k})" for k in range(10)]], expected.probs, rtol=1e-4)
    np.save(tmp_path / "far.npy", 255 * x.numpy())
    assert "expected 0 to 1, as in training" in alone(place, tmp_path / "far.npy")
    np.save(tmp_path / "flat.npy", x.numpy()[:, 0])
    assert "expected ('N', 1, 8, 8)" in alone(place, tmp_path / "flat.npy")


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("ward", "east", "row 3, ward: 'east'; expected Süd, ost, west"),
        ("x", "1,5", "row 3, x: '1,5'; expected a finite number"),
        ("x", "inf", "row 3, x: 'inf'; expected a finite number"),
        ("x", None, "columns that are missing: x"),
    ],
)
def test_a_row_that_does_not_fit_is_named(column, cell, said, exported, folder, alone, tmp_path):
    rows = pd.read_csv(folder / "rows.csv", dtype=str, keep_default_na=False)
    rows.loc[2, column] = cell
    (rows.drop(columns=column) if cell is None else rows).to_csv(tmp_path / "bad.csv", index=False)
    assert alone(exported("risk"), tmp_path / "bad.csv") == said


def test_the_folder_holds_the_posterior_and_the_chosen_thresholds(exported, folder):
    place = exported("risk")
    trained = load(folder / "risk")
    for name, tensor in load_file(place / "posterior.safetensors").items():
        np.testing.assert_array_equal(tensor, trained.posterior.state_dict()[name])
    chosen = json.loads((place / "thresholds.json").read_text())
    known = trained.evaluation_examples()
    risk = trained.as_scored(known).probs[:, 1]
    for cut in chosen["risk"]["thresholds"].values():
        alert = risk >= (torch.inf if cut["risk"] is None else cut["risk"])
        assert int((alert & (known.y == 1)).sum()) == cut["events found"]
        assert int((alert & (known.y == 0)).sum()) == cut["false alerts"]
    assert chosen["temperature"]["value"] == trained.line["temperature"]
    assert chosen["conformal"]["level"] == 0.8


def test_coefficients_have_their_table_and_covariance_in_place_of_a_graph(exported, folder):
    place = exported("coefficients")
    table = pd.read_csv(place / "coefficients.csv")
    covariance = pd.read_csv(place / "covariance.csv", index_col=0).to_numpy()
    np.testing.assert_allclose(np.sqrt(covariance.diagonal()), table["std"], rtol=1e-4)
    assert not (place / "model.onnx").exists() and not (place / "thresholds.json").exists()
    assert (exported("survival") / "survival.csv").exists()


def test_the_card_has_the_report_s_numbers_and_marks_what_is_open(exported, folder):
    place = exported("risk")
    write_report(folder / "risk")
    text = (folder / "risk" / "report.md").read_text("utf-8")
    for card in (folder / "risk" / CARD, place / CARD):
        said = card.read_text("utf-8")
        front = yaml.safe_load(said.split("---")[1])
        line = load(folder / "risk").line
        for one in front["model-index"][0]["results"][0]["metrics"]:
            assert one["value"] == pytest.approx(line[one["type"]], abs=1e-6)
        rows = [row for row in said.splitlines() if row.startswith("| ") and "[" in row]
        assert len(rows) > 20 and all(row in text for row in rows)
        assert "### Direct Use\n\n" + OPEN in said and "no differential privacy" in said
        assert "| partition 0 | train | 1 |" in said


def test_a_folder_of_others_is_left_alone(exported, folder, tmp_path):
    place = exported("images")
    refused("--force", export, folder / "images", place)
    refused("folder", export, folder / "images", tmp_path / "model.onnx")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    refused("thesis.tex", export, folder / "images", tmp_path / "mine", force=True)
    refused("settings.yaml", export, folder / "images", folder / "images", force=True)
    assert [file.name for file in tmp_path.rglob("*")] == ["mine", "thesis.tex"]


def test_a_run_that_predicts_by_dropout_is_exported_as_its_means_and_says_so(tmp_path):
    words = {"rule": "FedAvg", "bayesian_layers": 0, "dropout": 0.2, "predictive": "dropout"}
    run_inline(resolve({**QUICK, "task": "tables", **words}), tmp_path / "run")
    refused("samples: 5; expected 0", export, tmp_path / "run", tmp_path / "model")
    assert not (tmp_path / "model").exists()
    export(tmp_path / "run", tmp_path / "model", samples=0)
    text = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "It has no draws, and the scores of `card.md` are of 5" in text
