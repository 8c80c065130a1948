"""A report never ranks across conditions, and works for each kind of method and task."""

import re

import pandas as pd
import pytest
import torch
from every_method import NIGHT
from hypothesis import given
from hypothesis import strategies as st

from fedbary.predictive import Forecast
from fedbary.report.report import write_report
from fedbary.report.results import Metric, Results, marked
from fedbary.runs.schema import lower_is_better
from fedbary.scores import tables
from fedbary.scores.regression import score
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.study.table import read_run, read_table, write_table
from fedbary.tasks import task_class

QUICK = {
    "engine": "inline", "pictures": False, "clients": 2, "rounds": 1, "local_epochs": 1,
    "samples": 2,
}  # fmt: skip
NUMBERS = {"task": "regression", "protocol": "regression-vi"}
KINDS = [
    {"method": "LDA", "model": "linear", "bayesian_layers": 0},
    {"method": "Ridge", "model": "linear", "bayesian_layers": 0},
    {"method": "PVI", "model": "linear", "bayesian_layers": 1},
    {"method": "FedProx", "model": "linear", "bayesian_layers": 0},
    {"task": "tables", "method": "LDA", "model": "linear", "bayesian_layers": 0},
    {"task": "tables", "method": "PVI"},
    {"task": "regression"},
    {**NUMBERS, "method": "PVI"},
]


def swept(folder, runs):
    """A results folder with runs of these settings."""
    rows = []
    for number, settings in enumerate(runs):
        known = {key: value for key, value in QUICK.items() if _used(key, settings)}
        run_inline(resolve({**known, **settings}), folder / "runs" / str(number))
        rows.append(read_run(str(number), folder / "runs" / str(number)))
    write_table(folder, rows)
    return folder


def _used(key, settings):
    return key != "local_epochs" or settings.get("method") not in ("LDA", "Ridge")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", KINDS if NIGHT else KINDS[::2], ids=lambda kind: "-".join(map(str, kind.values()))
)
def test_a_run_of_any_kind_and_a_sweep_of_it_alone_have_a_report(settings, tmp_path):
    folder = swept(tmp_path, [settings])
    for results in (folder, folder / "runs" / "0"):
        text = write_report(results).with_suffix(".md").read_text()
        assert "NLL" in text.replace("Negative log-likelihood", "NLL")
        assert "Every pair" not in text


@pytest.fixture(scope="module")
def two_conditions(tmp_path_factory):
    """The runs of four arms, two of one method, at two levels of alpha: the second is easier."""
    folder = tmp_path_factory.mktemp("conditions")
    arms = [
        {"rule": "FedAvg", "bayesian_layers": 0}, {"rule": "RKLB"}, {"method": "PVI"},
        {"method": "PVI", "damping": 0.5},
    ]  # fmt: skip
    settings = {"task": "tables", "partition": "dirichlet", "seed": 0}
    swept(folder, [{**settings, "alpha": 0.1, **arm} for arm in arms])
    table = read_table(folder)
    rows = []
    for alpha, easier in ((0.1, 0.0), (10, 0.5)):
        for seed in (0, 1, 2):
            for run, of_it in table.groupby("run"):
                made = of_it.assign(run=f"{run}-{alpha}-{seed}", alpha=alpha, seed=seed)
                rows.append(made.assign(nll=1 - easier + 0.1 * int(run) + 0.01 * seed))
    write_table(folder, rows)
    write_report(folder)
    return folder


ARMS = ["FedAvg", "RKLB", "PVI, damping=0", "PVI, damping=0.5"]


def test_conditions_have_a_table_each_and_are_not_ranked_across(two_conditions):
    text = (two_conditions / "report.md").read_text()
    for condition, best in (("alpha=0.1", "1.010"), ("alpha=10", "0.510")):
        heading = f"### Breast cancer, {condition}\n"
        assert text.count(heading) == 1
        ranked = text.split(heading)[1].split("\n#")[0]
        names = re.findall(r"^\| ([^|]+?) \| \d", ranked, re.M)
        assert names == ARMS
        assert f"**{best} ± 0.010**" in ranked


def test_every_pair_of_arms_is_tested_in_each_condition(two_conditions):
    text = (two_conditions / "report.md").read_text()
    pairs = re.findall(r"^\| (.+?) − (.+?) \| NLL \| [+-]", text, re.M)
    expected = [(a, b) for number, a in enumerate(ARMS) for b in ARMS[number + 1 :]]
    assert pairs == 2 * expected


def test_runs_that_fail_alike_make_one_caution(two_conditions, tmp_path):
    table = read_table(two_conditions).assign(behind="its accuracy is low. Try rounds=2")
    write_table(tmp_path, [table])
    text = write_report(tmp_path).with_suffix(".md").read_text()
    assert text.count("behind a linear one") == 1 and "and 23 more of 24 runs" in text
    assert text.index("## Cautions") > text.index("## Methods side by side")


def test_a_budget_is_a_condition_only_where_runs_of_one_method_differ_in_it(two_conditions):
    """A method of one round stands beside others; ten rounds of a method do not beside two."""
    table = read_table(two_conditions)
    table = table[table["alpha"] == 10]
    once = table.assign(rounds=table["rounds"].where(table["method"] != "PVI", 1))
    both = pd.concat([table, table.assign(run=table["run"] + "-more", rounds=10)])
    for rows, conditions in ((once, 1), (both, 2)):
        assert Results.of(rows, two_conditions).last["condition"].nunique() == conditions


def test_the_tidy_table_has_a_row_a_run_with_its_scores(two_conditions):
    tidy = pd.read_csv(two_conditions / "results.csv")
    last = read_table(two_conditions).groupby("run").tail(1).set_index("run")
    assert tidy["run"].is_unique and set(tidy["run"]) == set(last.index)
    assert (tidy.set_index("run")["nll"] == last["nll"][tidy["run"]]).all()
    assert {"alpha", "seed", "damping", "accuracy", "bytes.up"} <= set(tidy)
    assert set(tidy["arm"]) == set(ARMS) and (tidy.groupby("condition").size() == 12).all()


def test_what_is_a_condition_does_not_depend_on_the_order_of_the_runs(two_conditions):
    table = read_table(two_conditions)
    shuffled = table.sample(frac=1, random_state=0)
    one, two = (
        Results.of(each, two_conditions).last.set_index("run")[["condition", "arm"]]
        for each in (table, shuffled)
    )
    pd.testing.assert_frame_equal(one.sort_index(), two.sort_index())


TASKS = ("classification", "tables", "regression", "text")


def test_every_score_that_chooses_or_is_drawn_has_its_direction():
    """By name: a gain is higher, a loss lower. A coverage has its level, and no direction."""
    for task in map(task_class, TASKS):
        names = {*task.best_by, *(name for name, *_ in task.curves)}
        known = {name: lower_is_better(name) for name in names}
        assert {name for name, lower in known.items() if lower is None} <= {"coverage_90"}
        gains = {"accuracy", "auroc", "sensitivity"} & names
        assert {name for name, lower in known.items() if lower is False} == gains


def scores_of(answers, truth):
    """Every score of answers, by its name: of classes and numbers."""
    one_hot = torch.nn.functional.one_hot(answers, 3).double()
    var = torch.full((len(answers),), 0.01).double()
    forecast = Forecast(answers.double(), var, var)
    return {**tables.score(0.97 * one_hot + 0.01, truth), **score(forecast, truth.double())}


@given(st.lists(st.integers(0, 2), min_size=6, max_size=30), st.integers(1, 6))
def test_no_answer_is_better_than_the_truth_in_any_score(labels, wrong):
    truth = torch.tensor([0, 1, 2, *labels])
    mistaken = truth.clone()
    mistaken[:wrong] = (mistaken[:wrong] + 1) % 3
    best, worse = scores_of(truth, truth), scores_of(mistaken, truth)
    for name in best.keys() - {"ece"}:
        if (lower := lower_is_better(name)) is not None:
            assert best[name] <= worse[name] if lower else best[name] >= worse[name], name


@given(st.permutations(range(4)))
def test_the_best_of_a_column_is_the_largest_gain_and_the_least_loss(order):
    values = [float(number) for number in order]
    for name, best in (("accuracy", 3), ("ood.auroc_entropy", 3), ("rejection.0.2", 3),
                       ("nll", 0), ("untempered.nll", 0), ("bytes.up", 0)):  # fmt: skip
        cells = marked(Metric(name, ""), values, [str(number) for number in order])
        assert [cell.strip("*") for cell in cells if "**" in cell] == [str(best)]
    for name in ("coverage_90", "uncertainty.entropy", "temperature"):
        assert not any("**" in cell for cell in marked(Metric(name, ""), values, "abcd"))


@pytest.mark.slow
def test_without_data_at_the_server_the_scores_are_those_on_held_out_examples(tmp_path):
    """The table of such a run has no scores but those of the clients."""
    settings = {"task": "tables", "rule": "RKLB", "holdout": 0.3, "evaluate_clients": 1}
    (held,) = (read_table(swept(tmp_path / "made", [settings])),)
    own = [name for name in held if name.startswith(("uncertainty.", "rejection.", "ece"))]
    bare = held.drop(columns=["accuracy", "nll", "auroc", "sensitivity", "brier", *own])
    write_table(tmp_path, [bare.assign(dataset="none")])
    text = write_report(tmp_path).with_suffix(".md").read_text()
    nll = held.set_index("round")["held_out.nll"][1]
    assert f"{nll:.3f}" in text and "on what clients hold out" in text
