"""The report of one run: its scores are the run's, with what fits the kind of prediction."""

import json
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from fedbary import client_app, load
from fedbary.predictive.conformal import interval
from fedbary.report.judged import LABELS, MEANINGS
from fedbary.report.report import write_report
from fedbary.report.run import of_sites
from fedbary.runs.resume import sound_checkpoint
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import read_yaml, resolve

QUICK = {"engine": "inline", "clients": 2, "rounds": 1, "pictures": False, "samples": 5}
RISK = {"task": "tables", "holdout": 0.3, "calibrate": "temperature", "conformal": 0.8}
KINDS = {
    "risk": {**RISK, "dataset": "rare.csv", "target": "died", "partition": "iid"},
    "classes": {"dataset": "digits", "model": "mlp", "holdout": 0.2},
    "numbers": {"task": "regression", "protocol": "regression-vi", "partition": "iid"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kinds")


@pytest.fixture(scope="module")
def reports(folder):
    """A run's folder and its report's text, by the kind of prediction."""
    rng = np.random.default_rng(0)
    x, ward = rng.normal(size=400), rng.choice(["<i>east", "west"], 400)
    died = np.where(rng.random(400) < 1 / (1 + np.exp(2 - 1.5 * x)), "yes", "no")
    pd.DataFrame({"x": x, "ward": ward, "died": died}).to_csv(folder / "rare.csv", index=False)
    found = {}
    for kind, words in KINDS.items():
        if "csv" in words.get("dataset", ""):
            words = {**words, "dataset": str(folder / words["dataset"])}
        run_inline(resolve({**QUICK, **words}), folder / kind)
        found[kind] = write_report(folder / kind).with_suffix(".md").read_text()
    return found


def table_after(text, heading):
    """The first table after a heading: its rows by their first cell."""
    part = text.partition(f"# {heading}\n")[2]
    (block,) = re.findall(r"(?:^\|.*\n)+", part, re.M)[:1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()]
    return {row[0]: row[1:] for row in [rows[0], *rows[2:]]}


def number(cell):
    return float(re.match(r"[-\d.]+", cell)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_scores_are_those_of_the_run_and_lie_in_their_intervals(reports, folder, kind):
    line = json.loads((folder / kind / "metrics.jsonl").read_text().splitlines()[-1])
    table = table_after(reports[kind], "Scores")
    for label, name, scale in (("NLL, nats", "nll", 1), ("Accuracy, %", "accuracy", 100)):
        if name in line:
            cell = table[label][0]
            assert number(cell) == pytest.approx(scale * line[name], abs=0.051)
            low, high = map(float, re.findall(r"\[(.+), (.+)\\\]", cell)[0])
            assert low <= number(cell) <= high
    trained = load(folder / kind)
    examples = trained.evaluation_examples()
    scores = trained.task.judged(trained.as_scored(examples), examples.y)
    assert {name: line[name] for name in scores} == pytest.approx(scores, rel=1e-5)


def test_a_risk_has_its_calibration_thresholds_groups_sites_sets_and_temperature(reports):
    text = reports["risk"]
    for heading in ("Risk of yes", "By group", "By site", "Conformal sets", "Temperature"):
        assert text.count(f"## {heading}\n") == 1
    for picture in ("calibration", "roc", "precision-recall", "decision"):
        assert f"![{picture}]" in text
    thresholds = table_after(text, "Thresholds")
    assert number(thresholds["at least 90 % of yes found"][4]) >= 90
    assert number(thresholds["at most 5 % alerts"][1]) <= 50
    sites = table_after(text, "By site")
    at = sites["site"].index("AUROC, %")
    for site in ("partition 0", "partition 1"):
        low, high = map(float, re.findall(r"\[(.+), (.+)\\\]", sites[site][at])[0])
        assert 0 < low < number(sites[site][at]) < high < 100
    groups = table_after(text, "By group")
    assert list(groups) == ["group", "all", "ward=\\<i\\>east", "ward=west"]
    assert sum(int(groups[f"ward={ward}"][0]) for ward in (r"\<i\>east", "west")) == int(
        groups["all"][0]
    )


def test_what_left_each_site_is_what_the_record_counts(reports, folder):
    for kind, text in reports.items():
        counted = Counter()
        for line in (folder / kind / "record.jsonl").read_text().splitlines():
            event = json.loads(line)
            counted["numbers"] += event["numbers"] if event["event"] == "answered" else 0
            counted["messages"] += event["event"] == "asked"
        rows = re.findall(r"^\| partition \d \|.*\|$", text.partition("## What left")[2], re.M)
        cells = [[cell.strip().replace(",", "") for cell in row.split("|")] for row in rows]
        assert sum(int(row[3]) for row in cells) == counted["messages"]
        assert sum(int(row[4]) for row in cells) == counted["numbers"]


def test_a_level_of_the_data_makes_no_element(reports, folder):
    assert "<i>" not in (folder / "risk" / "report.html").read_text()


def test_cautions_come_last_and_once(reports):
    for text in reports.values():
        headings = re.findall(r"^## (.+)$", text, re.M)
        assert headings[-2:] == ["Cautions", "Settings and versions"]
        cautions = re.findall(r"^- (.+)$", text.partition("## Cautions")[2], re.M)
        assert cautions and len(set(cautions)) == len(cautions)


def test_classes_have_a_confusion_matrix_and_numbers_their_pit(reports):
    assert "![confusion]" in reports["classes"] and "![reliability]" in reports["classes"]
    assert "![pit]" in reports["numbers"] and "![residuals]" in reports["numbers"]
    assert "linear model" in reports["numbers"] and "commonest class" in reports["classes"]


def test_rows_that_are_gone_are_said_and_the_sites_scores_stay(reports, folder):
    (folder / "rare.csv").rename(folder / "gone.csv")
    text = write_report(folder / "risk").with_suffix(".md").read_text()
    (folder / "gone.csv").rename(folder / "rare.csv")
    assert "The test rows are not here" in text and "fedbary evaluate" in text
    assert "## By site" in text and "## Scores" not in text


@pytest.fixture(scope="module")
def real(folder, reports):
    """The folder of a run of two real sites, whose model learns nothing."""
    held = pd.read_csv(folder / "rare.csv")
    nodes = []
    for name, rows in (("north", held[:250]), ("east", held[250:])):
        rows.to_csv(folder / f"{name}.csv", index=False)
        nodes.append({"data-path": str(folder / f"{name}.csv"), "name": name})
    words = {
        **RISK,
        "dataset": str(folder / "rare.csv"),
        "target": "died",
        "alpha": 0.3,
        "lr": 1e-7,
    }
    chosen = resolve({**QUICK, **words, "rounds": 4})
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, folder / "real")
    return folder / "real"


def test_how_data_were_dealt_is_not_said_of_real_sites(reports, folder, real):
    """The settings of the deal stand apart, and a run is read, and goes on, as with them."""
    made, dealt = read_yaml(real / "settings.yaml"), {"partition", "alpha", "min_examples"}
    assert made["unused"].keys() == dealt and not dealt & made["settings"].keys()
    assert made["unused"]["alpha"] == 0.3 and load(real).settings.partition == "dirichlet"
    assert sound_checkpoint(real, load(real).settings.model_copy(update={"resume": "last"}), [4])
    text = write_report(real).with_suffix(".md").read_text()
    assert "`partition`" in reports["risk"] and "2 simulated" in reports["risk"]
    assert "partition" not in text and "2 real" in text and "| north | 250 |" in text
    assert "Try " in text


def test_the_scores_of_all_sites_are_the_means_of_the_sites_own(real):
    trained, made = load(real), read_yaml(real / "settings.yaml")
    (rows, together), *each = of_sites(trained, made).values()
    assert rows == sum(count for count, _ in each)
    right = sum(round(count * one["accuracy"][0]) for count, one in each)
    assert together["accuracy"] == pytest.approx((right / rows, *interval(right, rows)))
    for held in (together, *(one for _, one in each)):
        for score in ("accuracy", "auroc", "sensitivity"):
            value, low, high = held[score]
            assert 0 <= low <= value <= high <= 1
    ends = [one["auroc"][0] for _, one in each]
    assert min(ends) <= together["auroc"][0] <= max(ends)


def test_the_report_of_a_glm_is_its_coefficients(tmp_path):
    """Its rounds end early: the run is whole all the same."""
    words = {"task": "glm", "terms": "`mean area` `mean texture`", "clients": 3}
    run_inline(resolve({"engine": "inline", "pictures": False, **words}), tmp_path / "run")
    write_report(tmp_path / "run")
    text = (tmp_path / "run" / "report.md").read_text("utf-8")
    table = load(tmp_path / "run").coefficients().table
    assert "## Coefficients" in text and "figures/forest.png" in text
    assert "rows of the rarest class | 212, for 2 columns" in text
    assert "what goes together in these rows" in text and "one seed" not in text
    for line in table.itertuples():
        assert f"| {line.term} | per 1 | {line.estimate:.4g} \\[" in text


def test_every_score_that_has_a_label_has_a_meaning():
    """Without that of C the report of a survival run was not drawn."""
    assert LABELS.keys() == MEANINGS.keys()
