"""Each task has its sections in a report; a task without any of its own has its scores shown."""

import pandas as pd
import pytest

from fedbary.report.cells import NLL
from fedbary.report.document import Document
from fedbary.report.pairs import compare
from fedbary.report.report import write_report
from fedbary.report.results import Results
from fedbary.report.sections._scores import Scores
from fedbary.settings.config import resolve
from fedbary.study.table import read_run, read_table, write_table
from fedbary.tasks import task_class
from server_app.engine.inline import run_inline

TABLES = {
    "task": "tables",
    "engine": "inline",
    "pictures": False,
    "rounds": 1,
    "local_epochs": 1,
    "samples": 2,
}
REGRESSION = {
    "task": "regression",
    "engine": "inline",
    "pictures": False,
    "clients": 3,
    "rounds": 1,
}


def swept(folder, runs):
    """A results folder with the runs of these settings."""
    tables = []
    for number, settings in enumerate(runs):
        run_inline(resolve(settings), folder / str(number))
        tables.append(read_run(str(number), folder / str(number)))
    write_table(folder, tables)
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Two rules and FedAvg on three splits of a table."""
    runs = [
        {**TABLES, "rule": rule, "bayesian_layers": n, "split": split}
        for rule, n in (("FedAvg", 0), ("RKLB", 2), ("WB", 2))
        for split in (0, 1, 2)
    ]
    return swept(tmp_path_factory.mktemp("tables"), runs)


def cells(markdown, *first):
    rows = [
        [cell.strip("*<u>/ ") for cell in line.split("|")[1:-1]] for line in markdown.split("\n")
    ]
    return next(row for row in rows if row[: len(first)] == list(first))


def test_a_report_on_tables_has_their_scores_over_the_splits(tables):
    write_report(tables)
    markdown = (tables / "report.md").read_text()
    table = read_table(tables)
    last = table[(table["round"] == 1) & (table["rule"] == "WB")]
    shown = [
        100 * last["accuracy"],
        last["nll"],
        *(100 * last[c] for c in ("ece_15", "auroc", "sensitivity")),
    ]
    places = (2, 3, 2, 2, 2)
    expected = [f"{v.mean():.{p}f} ± {v.std():.{p}f}" for v, p in zip(shown, places, strict=True)]
    assert cells(markdown, "2", "WB") == ["2", "WB", "3", *expected]
    assert (
        "| n | method | runs | Accuracy % | NLL | ECE %, 15 bins | AUROC % | Sensitivity % |"
        in markdown
    )
    assert "the splits (0, 1, 2)" in markdown and "a share of 0.95 of the others" in markdown


def test_a_report_on_tables_says_nothing_of_images_and_counts_pairs_by_split(tables):
    write_report(tables)
    markdown = (tables / "report.md").read_text()
    assert "image" not in markdown
    assert "not independent" in markdown.replace("\n", " ")
    pair = cells(markdown, "RKLB − WB")
    assert " of 3" in pair[2] and "points" not in pair[-1]
    for picture in ("triangles", "nll-auroc", "rejection", "partition-1"):
        assert f"(figures/{picture}.png)" in markdown


def test_a_task_without_sections_shows_the_scores_whose_course_it_draws(tables, tmp_path):
    document = Document(tmp_path, "Unknown")
    Scores(task_class("tables")).write(Results.of(read_table(tables), tables), document)
    document.write()
    markdown = (tmp_path / "report.md").read_text()
    labels = [label for _, _, label, _ in task_class("tables").curves]
    assert f"| n | method | runs | {' | '.join(labels)} |" in markdown
    nll = read_table(tables).query("rule == 'WB' and round == 1")["nll"]
    assert cells(markdown, "2", "WB")[4] == f"{nll.mean():.3f} ± {nll.std():.3f}"


def test_runs_of_several_tasks_have_a_part_of_the_report_each(tables, tmp_path):
    swept(tmp_path, [REGRESSION, {**REGRESSION, "split": 1}])
    both = pd.concat([read_table(folder) for folder in (tables, tmp_path)])
    both["run"] = range(len(both))
    runs = both.groupby(["task", "rule", "split"], dropna=False)["run"]
    both["run"] = runs.transform("min").astype(str)
    write_table(tmp_path, [both])
    write_report(tmp_path)
    markdown = (tmp_path / "report.md").read_text()
    parts = markdown.split("\n# Task: ")
    assert [part.split("\n")[0] for part in parts[1:]] == ["tables", "regression"]
    assert "AUROC" in parts[1] and "sharpness" in parts[2] and "AUROC" not in parts[2]


def test_a_run_of_a_version_without_splits_pairs_with_one_of_split_0(tables):
    table = read_table(tables).query("split == 0 and rule != 'FedAvg'")
    seeds = [table.assign(seed=seed, run=table["run"] + f"-{seed}") for seed in (0, 1)]
    several = pd.concat(seeds).astype({"split": float})
    (expected,) = compare(Results.of(several, tables).last, NLL).itertuples()
    several.loc[several["rule"] == "WB", "split"] = None
    (found,) = compare(Results.of(several, tables).last, NLL).itertuples()
    assert (found.points, found.pairs, found.mean) == (2, expected.pairs, expected.mean)
