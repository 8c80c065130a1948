"""A run that has ended is loaded, predicts and is scored on examples of one's own."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from runs_of import INLINE, rows
from torch import nn

import fedbary
from fedbary.commands.use import evaluate, predict
from fedbary.errors import SettingError
from fedbary.runs.run_folder import POSTERIOR
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve

WRITTEN = {"scores.csv", "report.html", "report.md", "figures"}

QUICK = {**INLINE, "clients": 3, "rounds": 2, "local_epochs": 2}
RUNS = {
    "images": {"samples": 8},
    "members": {"method": "FedAG"},
    "gated": {"method": "FedHBMixture"},
    "tables": {"task": "tables"},
    "numbers": {"task": "regression"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, changes in RUNS.items():
        run_inline(resolve({**QUICK, **changes}), folder / name)
    return folder


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    held = load_digits()
    return (held.images * 15.9375).astype(np.uint8), held.target


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_the_loaded_model_scores_what_the_run_recorded(name, runs):
    """The same network, posterior and members; the draws are others'."""
    trained = fedbary.load(runs / name)
    assert isinstance(trained.network, nn.Module) and not trained.network.training
    known = trained.task.evaluation_examples()
    scores = trained.task.judged(trained.predict(known, 300), known.y)
    recorded = trained.rounds[-1]
    assert scores["nll"] == pytest.approx(recorded["nll"], abs=0.05)
    again = trained.task.judged(trained.predict(known, 300), known.y)
    assert again == scores
    if not trained.members:
        assert trained.task.judged(trained.predict(known, 300, seed=1), known.y) != scores


@pytest.mark.parametrize("name", [name for name, words in RUNS.items() if "method" in words])
def test_without_the_members_there_is_no_model(name, runs, tmp_path):
    """What is left would be another model, which predicts too."""
    shutil.copytree(runs / name, tmp_path / "run")
    (tmp_path / "run" / "networks.safetensors").unlink()
    refused("networks.safetensors.*the file as the run wrote it", fedbary.load, tmp_path / "run")


def test_a_run_s_files_are_as_open_as_any_file(runs, tmp_path):
    (tmp_path / "plain").touch()
    files = [file for file in (runs / "members").iterdir() if file.is_file()]
    assert {POSTERIOR, "metrics.jsonl"} <= {file.name for file in files}
    assert {file.stat().st_mode for file in files} == {(tmp_path / "plain").stat().st_mode}


def test_inputs_alone_are_predicted_too(runs, digits):
    trained, (x, _) = fedbary.load(runs / "images"), digits
    prediction = trained.predict(torch.from_numpy(x[:5, None]), samples=4)
    assert prediction.probs.shape == (5, 10)
    assert bool((prediction.entropy >= prediction.epistemic).all())
    with torch.no_grad():
        plain = trained.network(torch.from_numpy(x[:5, None]).float() / 255)
    assert plain.shape == (5, 10)


def test_it_needs_no_flower(runs):
    code = (
        f"import sys, fedbary; t = fedbary.load({str(runs / 'tables')!r});"
        "t.predict(t.task.evaluation_examples()); assert not {'flwr', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_images_in_every_form_get_the_same_predictions(runs, digits, here):
    x, y = digits[0][:12], digits[1][:12]
    np.savez("new.npz", x=x)
    for place, (image, label) in enumerate(zip(x, y, strict=True)):
        for folder in (Path("flat"), Path("named") / str(label)):
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{place:02d}.png")
    predict(runs / "images", Path("new.npz"), output=Path("npz.csv"))
    predict(runs / "images", Path("flat"), output=Path("flat.csv"))
    predict(runs / "images", Path("flat/03.png"), output=Path("one.csv"))
    columns = [f"p({digit})" for digit in range(10)]
    as_npz, as_files, alone = (rows(f"{name}.csv") for name in ("npz", "flat", "one"))
    assert [row["example"] for row in as_files[:2]] == ["00.png", "01.png"]
    assert [[row[c] for c in columns] for row in as_npz] == [
        [row[c] for c in columns] for row in as_files
    ]
    for column in columns:  # alone a batch's sums may round otherwise
        assert float(alone[0][column]) == pytest.approx(float(as_npz[3][column]), rel=1e-3)
    assert Path("npz.png").stat().st_size > 5000
    evaluate(runs / "images", Path("named"), by="folder", output=Path("scored"))
    groups = rows("scored/scores.csv")
    assert [row["group"] for row in groups] == ["all", *(f"folder={d}" for d in range(10))]
    right = sum(float(row["accuracy"]) * int(row["examples"]) for row in groups[1:])
    assert right / 12 == pytest.approx(float(groups[0]["accuracy"]), abs=1e-4)
    assert {p.name for p in Path("scored").iterdir()} == WRITTEN


def test_colours_are_converted_and_said_to_be(runs, digits, here, capsys):
    grey = Image.fromarray(digits[0][0])
    Path("scans").mkdir()
    for name, mode in (("a", "L"), ("b", "RGB"), ("c", "RGB")):
        grey.convert(mode).save(f"scans/{name}.png")
    predict(runs / "images", Path("scans"))
    said = "scans: 2 of 3 images (first: b.png) were converted to grey"
    assert f"{said}, as the model needs\n" in capsys.readouterr().err
    one, *others = ({**row, "example": ""} for row in rows())
    assert others == [one, one]
    predict(runs / "images", Path("scans/a.png"), force=True)
    assert "converted" not in capsys.readouterr().err


def test_groups_of_any_level_of_folders_are_scored_and_drawn(runs, digits, here):
    x, y = digits[0][:12], digits[1][:12]
    for place, (image, label) in enumerate(zip(x, y, strict=True)):
        folder = Path("wards") / f"ward{place % 2}" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{place}.png")
    evaluate(runs / "images", Path("wards"), by="folder")
    evaluate(runs / "images", Path("wards"), by="folder 2", output=Path("digits"))
    assert [row["group"] for row in rows("evaluation/scores.csv")] == [
        "all", "folder=ward0", "folder=ward1",
    ]  # fmt: skip
    assert len(rows("digits/scores.csv")) == 1 + len(set(y.tolist()))
    assert {file.name for file in Path("evaluation").iterdir()} == WRITTEN


def test_rows_are_found_by_the_names_of_their_columns(runs, here, capsys):
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    kinds = np.array(["malignant", "benign"])[frame.pop("target")]
    frame["ward"] = np.where(np.arange(len(frame)) % 3, "north", "=south()")
    shuffled = frame[frame.columns[::-1]]
    frame.head(20).to_csv("a.csv", index=False)
    shuffled.head(20).assign(kind=kinds[:20]).to_csv("b.csv", index=False)
    predict(runs / "tables", Path("a.csv"), output=Path("pa.csv"), error_rate=0.05)
    verdict = fedbary.load(runs / "tables").line["behind"]
    behind = f"The model is behind a linear one: {verdict}\n"  # two rounds are few
    assert capsys.readouterr().err == f"{behind}a.csv: unused columns: ward\n"
    predict(runs / "tables", Path("b.csv"), output=Path("pb.csv"), target="kind")
    assert capsys.readouterr().err == f"{behind}b.csv: unused columns: ward\n"
    one, other = rows("pa.csv"), rows("pb.csv")
    assert {row["to a person"] for row in one} <= {"True", "False"}
    for row in one:
        del row["to a person"]
    assert one == other
    evaluate(runs / "tables", Path("b.csv"), by="ward", target="kind")
    _, said = capsys.readouterr().err.splitlines()
    assert said.endswith(" of 20 examples are equal to ones trained on")
    names = [row["group"] for row in rows("evaluation/scores.csv")]
    assert names == ["all", "ward==south()", "ward=north"]


def test_numbers_come_with_their_interval(runs, here):
    from sklearn.datasets import load_diabetes

    frame = load_diabetes(as_frame=True, scaled=False).frame
    frame.drop(columns="target").head(7).to_csv("new.csv", index=False)
    predict(runs / "numbers", Path("new.csv"))
    for row in rows():
        mean, std = float(row["mean"]), float(row["std"])
        half = (float(row["upper 90 %"]) - float(row["lower 90 %"])) / 2
        assert 0 < mean < 400 and half == pytest.approx(1.6449 * std, rel=1e-3)
    one = frame.drop(columns="target").head(1)
    one.to_csv("one.csv", index=False)
    predict(runs / "numbers", Path("one.csv"), output=Path("o.csv"))
    assert rows("o.csv")[0]["mean"] == rows()[0]["mean"]


def test_what_does_not_fit_is_one_line_and_nothing_is_written(runs, digits, here):
    x, y = digits
    np.savez("wide.npz", x=np.zeros((2, 9, 9), np.uint8))
    np.savez("nan.npz", x=np.full((2, 8, 8), np.nan))
    np.savez("none.npz", z=x)
    np.savez("far.npz", x=x[:3], y=np.array([0, 1, 10]))
    np.savez("plain.npz", x=x[:3])
    Path("empty.csv").write_text("mean radius\n")
    Path("few.csv").write_text("mean radius,age\n1,2\n")
    Path("age.csv").write_text("age,sex\n59,2\n")
    Path("bare").mkdir()
    (runs / "unfinished").mkdir(exist_ok=True)
    whole = runs / "images" / "settings.yaml"
    (runs / "unfinished" / "settings.yaml").write_bytes(whole.read_bytes())
    shutil.copytree(runs / "images", runs / "silent", dirs_exist_ok=True)
    (runs / "silent" / "metrics.jsonl").write_text("")
    cases = [
        ("silent", "plain.npz", "metrics.jsonl"),
        ("images", "wide.npz", "1×8×8"),
        ("images", "nan.npz", "not finite"),
        ("images", "none.npz", "the array x"),
        ("images", "far.npz", "labels from 0 to 9"),
        ("images", "few.csv", "an .npz file, an image"),
        ("images", "bare", "a folder with images"),
        ("images", "absent.npz", "there is none"),
        ("tables", "empty.csv", "at least one"),
        ("tables", "few.csv", "missing: mean texture"),
        ("tables", "bare", ".csv, a .parquet or an .npz"),
        ("numbers", "age.csv", "missing: bmi"),
        ("unfinished", "plain.npz", "has ended"),
        ("absent", "plain.npz", "the folder of a run; there is none"),
        ("images", "absent", "data: 'absent'; .* there is none"),
        ("tables", "absent.csv", "data: 'absent.csv'; .* there is none"),
    ]
    for run, data, said in cases:
        refused(said, predict, runs / run, Path(data))
    with pytest.raises(SettingError, match="an interval"):
        np.savez("d.npz", x=np.zeros((2, 10)))
        Path("rows.csv").write_text("age,sex,bmi,bp,s1,s2,s3,s4,s5,s6\n" + "1," * 9 + "1\n")
        predict(runs / "numbers", Path("rows.csv"), error_rate=0.1)
    Path("blank.csv").write_bytes(b"")
    Path("blank.npz").write_bytes(b"")
    Path("blank.png").write_bytes(b"")
    Path("text.csv").write_text("age,sex,bmi,bp,s1,s2,s3,s4,s5,s6\n" + "1," * 9 + "many\n")
    Path("nan.csv").write_text("age,sex,bmi,bp,s1,s2,s3,s4,s5,s6\n" + "1," * 9 + "nan\n")
    damaged = runs / "damaged"
    shutil.copytree(runs / "numbers", damaged, dirs_exist_ok=True)
    (damaged / "posterior.safetensors").write_bytes(b"half")
    for run, data in [
        ("numbers", "blank.csv"), ("numbers", "text.csv"), ("numbers", "nan.csv"),
        ("numbers", "plain.npz"), ("tables", "plain.npz"), ("images", "blank.npz"),
        ("images", "blank.png"), ("images", "rows.csv"), ("damaged", "rows.csv"),
    ]:  # fmt: skip
        with pytest.raises(SettingError) as error:
            predict(runs / run, Path(data))
        assert "\n" not in str(error.value), (run, data)
    refused("labelled examples", evaluate, runs / "images", Path("plain.npz"))
    assert not list(here.glob("predictions*")) and not Path("evaluation").exists()
    Path("predictions.csv").write_text("mine")
    refused("--force", predict, runs / "images", Path("plain.npz"))
    with pytest.raises(SettingError, match="run: .*absent"):  # it is amiss whatever lies here
        predict(runs / "absent", Path("plain.npz"))
    assert Path("predictions.csv").read_text() == "mine"
    predict(runs / "images", Path("plain.npz"), force=True)
    assert len(rows()) == 3
