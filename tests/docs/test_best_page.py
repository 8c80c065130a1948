"""The README's table, and what the page on the best settings says of targets and differences."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import best
from fedbary.report.cells import ACCURACY, NLL
from fedbary.study.table import FORMAT, result_rows, write_table

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = (1, 5, 6)


COLUMNS = [
    *(metric.column for metric in (ACCURACY, NLL, *best.ECE, best.BRIER)),
    "ood.auroc_entropy", *(f"by_chance.{metric.column}" for metric in best.ECE),
]  # fmt: skip


def fill(folder, datasets, seed, **schedule):
    rng, rows = np.random.default_rng(seed), []
    for dataset in datasets:
        for rule in best.RULES:
            for number, at in itertools.product(range(3), ROUNDS):
                rows.append(
                    {
                        "format": FORMAT, "run": f"{dataset}-{seed}-{rule}-{number}", "rule": rule,
                        "dataset": dataset, "seed": number, "rounds": ROUNDS[-1],
                        "local_epochs": 2, **schedule, "round": at,
                        **{column: rng.uniform() for column in COLUMNS},
                    }
                )  # fmt: skip
    folder.mkdir(exist_ok=True)
    write_table(folder, [pd.DataFrame(rows)])


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One network on both data sets, and of snapshots and a shorter schedule the first alone."""
    folder = tmp_path_factory.mktemp("results")
    fill(folder / "best", best.NAMES, 0, method="barycentre")
    fill(folder / best.SNAPSHOTS, [best.FIRST], 1, method="SnapshotEnsemble", cycle=2)
    fill(folder / best.SHORT, [best.FIRST], 2)
    return folder / "best"


def test_the_readme_shows_the_headline_that_the_results_give():
    made = best.headline(result_rows(best.read(ROOT / "results/best")))
    assert made in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_target_is_met_where_the_score_itself_meets_it(results):
    last = result_rows(best.read(results))
    lines = [line for line in best.targets_table(last).splitlines() if "Accuracy" in line]
    for line, (dataset, targets) in zip(lines, best.TARGETS.items(), strict=True):
        method = "SnapshotEnsemble" if dataset == best.FIRST else "barycentre"
        of_it = last[(last["dataset"] == dataset) & (last["rule"] == "RKLB")]
        of_it = of_it[of_it["method"] == method]
        scores = 100 * of_it.sort_values("seed")["accuracy"].to_numpy()
        cells = [cell.strip() for cell in line.strip("|").split("|")][3:]
        for cell, score in zip(cells, [*scores, scores.mean()], strict=True):
            assert float(cell.strip("*")) == pytest.approx(score, abs=0.0051)
            assert cell.startswith("**") == (score >= targets[ACCURACY])


def test_snapshots_come_first_and_are_compared_with_one_network(results):
    last = result_rows(best.read(results))
    short = result_rows(best.read_table(results.with_name(best.SHORT)))
    names = [found.name for found in best.settings(last)]
    one = ["Fashion-MNIST, 6 rounds", "CIFAR-10, 6 rounds"]
    assert names == ["Fashion-MNIST, 3 snapshots of 2 rounds", *one]
    assert [found.name for found in best.best_of_each(last)] == [names[0], names[2]]
    table = best.schedules_table(last, short)
    (line,) = [
        line
        for line in table.splitlines()
        if "| FedAvg, 3 snapshots of 2 rounds − 6 rounds | NLL |" in line
    ]
    both = last[(last["rule"] == "FedAvg") & (last["method"] == "SnapshotEnsemble")], short
    of_each = [rows[rows["rule"] == "FedAvg"]["nll"].to_numpy() for rows in both]
    found = float(line.split("|")[3].split()[0])
    assert found == pytest.approx((of_each[0] - of_each[1]).mean(), abs=6e-4)


def test_the_curves_are_the_means_over_seeds_by_round(results):
    rows = best.read(results)
    rows = rows[rows["method"] == "SnapshotEnsemble"]
    first = best.picture(results).axes[0]
    for line in first.lines:
        of_it = rows[(rows["dataset"] == "fashionmnist") & (rows["rule"] == line.get_label())]
        means = 100 * of_it.groupby("round")["accuracy"].mean()
        assert np.allclose(line.get_xdata(), means.index)
        assert np.allclose(line.get_ydata(), means)
    assert {line.get_label() for line in first.lines} == set(best.RULES)


def test_a_temperature_has_rows_of_its_own_and_is_not_in_the_curves(results, tmp_path):
    scores = ["untempered.accuracy", "untempered.nll"]
    rows = best.read_table(results).assign(**dict.fromkeys(scores, np.nan))
    end = (rows["round"] == ROUNDS[-1]) & (rows["dataset"] == "cifar10")
    rows.loc[end, scores] = 0.125
    write_table(tmp_path, [rows])
    text = best.headline(result_rows(best.read(tmp_path)), (ACCURACY, NLL))
    names = [line.split("|")[2].strip() for line in text.splitlines()[2:]]
    assert names == ["RKLB", "FedAvg", "RKLB", "RKLB, T", "FedAvg", "FedAvg, T"]
    assert text.count("12.50 ± 0.00") == text.count("0.125 ± 0.000") == 2
    axes = best.picture(tmp_path).axes
    assert axes[3].lines[0].get_ydata()[-1] == 12.5 and axes[0].lines[0].get_ydata()[-1] != 12.5
