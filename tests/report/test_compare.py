"""Runs beside each other: what differs, their scores, pairs of seeds; a report of one run."""

import shutil

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from refusals import refused

from fedbary import load
from fedbary.commands.experiments import compare, report
from fedbary.errors import SettingError
from fedbary.figures.courses import courses
from fedbary.figures.document import Document
from fedbary.report import compared
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve

QUICK = {
    "task": "tables", "engine": "inline", "clients": 2, "rounds": 1, "local_epochs": 1,
    "pictures": False, "samples": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for rule in ("RKLB", "WB"):
        for seed in (0, 1):
            run_inline(resolve({**QUICK, "rule": rule, "seed": seed}), folder / f"{rule}{seed}")
    return folder


def test_what_differs_is_named_and_seeds_are_paired(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folders = sorted(runs.iterdir())
    table = compared.with_arms(compared.read_runs(folders))
    assert list(table["arm"].unique()) == ["RKLB", "WB"]
    header, rows = compared.runs_table(table)
    assert header[:4] == ["run", "arm", "seed", "round"]
    assert [row[0] for row in rows] == [folder.name for folder in folders]
    last = table.groupby("run").tail(1).set_index("run")["nll"]
    (nll,) = (row for row in compared.pairs_of(table)[1] if "likelihood" in row[1])
    difference = (last["RKLB0"] - last["WB0"] + last["RKLB1"] - last["WB1"]) / 2
    assert float(nll[2].split()[0]) == pytest.approx(difference, abs=1e-3) and " of 2" in nll[3]
    compare(folders)
    said = capsys.readouterr().out
    known = 100 * table.groupby("run").tail(1)["accuracy"]
    accuracies = [row[header.index("Accuracy (%)")] for row in rows]
    assert accuracies == [f"{a:.4f}" for a in known] and all(a in said for a in accuracies)
    made = {file.name for file in (tmp_path / "comparison").rglob("*.*")}
    drawn = {f"courses-{key}.png" for key, *_ in compared.curves_of(table)}
    assert made == {"comparison.md", "comparison.html", *drawn}
    refused("--force", compare, folders)


def test_a_single_run_has_a_report(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "WB0", run)
    report(run)
    assert "WB" in (run / "report.md").read_text(encoding="utf-8")
    refused("two or more", compared.read_runs, [runs / "WB0", runs / "WB0"])


@pytest.mark.parametrize(
    ("gone", "goes_on"),
    [
        (["settings.yaml"], False),
        (["metrics.jsonl"], False),
        (["posterior.safetensors"], True),
        (["metrics.jsonl", "posterior.safetensors"], False),
        (["posterior.safetensors", "checkpoint-*"], False),
    ],
)
def test_every_command_says_what_a_run_lacks_and_advises_to_resume_one_that_can_be(
    runs, tmp_path, gone, goes_on
):
    run = tmp_path / "run"
    shutil.copytree(runs / "WB0", run)
    for file in [file for pattern in gone for file in run.glob(pattern)]:
        file.unlink()
    lacks = ", ".join(name for name in gone if "*" not in name)
    advice = f"; fedbary resume {run} goes on with it" if goes_on else ""
    for use in (load, report, lambda run: compared.read_runs([runs / "WB1", run])):
        with pytest.raises(SettingError) as error:
            use(run)
        assert str(error.value).endswith(f"has ended; this one lacks {lacks}{advice}")


def test_a_folder_that_is_not_there_is_said_to_be_none(runs, tmp_path):
    absent = tmp_path / "absent"
    for use in (load, report, lambda run: compared.read_runs([runs / "WB1", run])):
        refused("there is none of this name", use, absent)


def test_a_parameter_that_a_method_lacks_is_not_said_of_it(runs, tmp_path):
    folders = [runs / "RKLB0"]
    for mu in (0.1, 0.2):
        folders.append(tmp_path / str(mu))
        run_inline(
            resolve({**QUICK, "method": "FedProx", "bayesian_layers": 0, "mu": mu}), folders[-1]
        )
    table = compared.with_arms(compared.read_runs(folders))
    of_rule, *of_methods = table["arm"].unique()
    assert "mu=" not in of_rule and ["mu=0.1" in arm for arm in of_methods] == [True, False]
    header, rows = compared.runs_table(table)
    assert [row[header.index("mu")] for row in rows] == ["–", "0.1", "0.2"]


def test_the_first_is_better_by_a_higher_accuracy_and_a_lower_nll(runs):
    """The pairs' counts are those of the scores table, in the direction of each."""
    table = compared.with_arms(compared.read_runs(sorted(runs.iterdir())))
    last = table.groupby("run").tail(1).set_index("run")
    for _, label, _, better, *_ in compared.pairs_of(table)[1]:
        (key,) = (key for key, _, name, _ in compared.curves_of(table) if name == label)
        gains = [last[key][f"RKLB{seed}"] - last[key][f"WB{seed}"] for seed in (0, 1)]
        ahead = sum(gain < 0 if key == "nll" else gain > 0 for gain in gains)
        assert better.startswith(f"{ahead} of 2")


def made(folder, **words):
    run_inline(resolve({**QUICK, **words}), folder)
    return folder


def test_arms_are_named_by_what_differs_within_a_method(runs, tmp_path):
    """A name says no setting that other methods have and it lacks, and none that it has alone."""
    folders = [
        runs / "RKLB0", made(tmp_path / "pvi", method="PVI", damping=0.5),
        made(tmp_path / "weight", kl_weight=0.01),
    ]  # fmt: skip
    table = compared.with_arms(compared.read_runs(folders))
    assert list(table["arm"].unique()) == ["RKLB, kl_weight=0.1", "PVI", "RKLB, kl_weight=0.01"]


def test_arms_are_compared_within_a_condition_alone(runs, tmp_path):
    """Two rules at two levels of skew: a pair and a picture for each level, none across."""
    skewed = [
        made(tmp_path / f"{rule}{seed}", rule=rule, seed=seed, alpha=10.0)
        for rule in ("RKLB", "WB") for seed in (0, 1)
    ]  # fmt: skip
    table = compared.with_arms(compared.read_runs([*sorted(runs.iterdir()), *skewed]))
    page = Document(tmp_path / "page", "Comparison")
    compared.write(table, page)
    text = "\n".join(page.section(""))
    for alpha in ("0.5", "10"):
        part = text.split(f"### Breast cancer, alpha={alpha}\n")[1].split("###")[0]
        pairs = {line.split(" | ")[0] for line in part.splitlines() if " − " in line}
        assert pairs == {"| RKLB − WB", "| pair"}
    page.write()
    drawn = {file.name for file in (tmp_path / "page" / "figures").iterdir()}
    scores = [key for key, *_ in compared.curves_of(table)]
    assert drawn == {f"courses-{key}-{number}.png" for key in scores for number in (1, 2)}


@pytest.mark.parametrize("panels", [1, 2])
@pytest.mark.parametrize("arms", [2, 4, 8])
def test_a_picture_has_room_for_its_panels_whatever_its_legend(arms, panels):
    name = "RKLB, kl_weight=0.1, prior_std=0.25, weight_decay=0.0005, server_momentum=0.{}"
    rounds = [[{"round": k, "nll": 1 / k, "accuracy": 0.5} for k in (1, 2)]]
    curves = [("nll", 1.0, "NLL", "b"), ("accuracy", 100.0, "Accuracy (%)", "r")][:panels]
    picture = courses({name.format(k): rounds for k in range(arms)}, curves)
    FigureCanvasAgg(picture).draw()
    width, height = picture.get_size_inches() * picture.dpi
    extents = [axes.get_window_extent() for axes in picture.axes]
    assert all(min(one.width, one.height) > 2.2 * picture.dpi for one in extents)
    legend = picture.legends[0].get_window_extent()
    assert 0 <= legend.x0 and legend.x1 <= width and 0 <= legend.y0
    assert all(legend.y1 <= one.y0 for one in extents)


def test_a_comparison_has_a_picture_a_score_that_a_telephone_shows(runs, tmp_path):
    """Each picture shrinks to 358 pixels by a third at most."""
    page = Document(tmp_path, "Comparison")
    compared.write(compared.with_arms(compared.read_runs(sorted(runs.iterdir()))), page)
    assert "4 runs of 2 arms, on Breast cancer." in page.section("")[0]
    page.write()
    for file in (tmp_path / "figures").iterdir():
        with Image.open(file) as picture:
            assert picture.width <= 1.5 * 358
    assert 'class="wide"' not in (tmp_path / "report.html").read_text()
