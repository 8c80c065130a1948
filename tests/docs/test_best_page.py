"""The README's table, and what the page on the best settings says of targets and differences."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

from fedbary.report.cells import ACCURACY, DETECTION, NLL
from fedbary.study.table import FORMAT, result_rows, write_table
from findings.best import page as best

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = (1, 5, 6)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder, rng, rows = tmp_path_factory.mktemp("best"), np.random.default_rng(0), []
    columns = [metric.column for metric in (ACCURACY, NLL, *best.ECE, best.BRIER)]
    columns += [metric.column for metric in DETECTION]
    columns += [f"by_chance.{metric.column}" for metric in best.ECE]
    for dataset in best.NAMES:
        for rule in best.RULES:
            for seed in range(3):
                for number in ROUNDS:
                    rows.append(
                        {
                            "format": FORMAT, "run": f"{dataset}-{rule}-{seed}", "rule": rule,
                            "dataset": dataset, "seed": seed, "rounds": ROUNDS[-1],
                            "local_epochs": 2, "round": number,
                            **{column: rng.uniform() for column in columns},
                        }
                    )  # fmt: skip
    write_table(folder, [pd.DataFrame(rows)])
    return folder


def test_the_readme_shows_the_headline_that_the_results_give():
    made = best.headline(result_rows(best.read(ROOT / "findings/best")))
    assert made in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_target_is_met_where_the_score_itself_meets_it(results):
    last = result_rows(best.read(results))
    lines = [line for line in best.targets_table(last).splitlines() if "Accuracy" in line]
    wanted = [(dataset, rule) for dataset in best.TARGETS for rule in best.RULES]
    for line, (dataset, rule) in zip(lines, wanted, strict=True):
        of_it = last[(last["dataset"] == dataset) & (last["rule"] == rule)]
        scores = 100 * of_it.sort_values("seed")["accuracy"].to_numpy()
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[2] == rule
        for cell, score in zip(cells[3:], [*scores, scores.mean()], strict=True):
            assert float(cell.strip("*")) == pytest.approx(score, abs=0.0051)
            assert cell.startswith("**") == (score >= best.TARGETS[dataset][ACCURACY])


def test_mutual_information_stands_against_the_entropy_of_the_rule_that_has_no_other(results):
    last = result_rows(best.read(results))
    for line, dataset in zip(best.detection_table(last).splitlines()[2:], best.NAMES, strict=True):
        sides = (last[(last["dataset"] == dataset) & (last["rule"] == rule)] for rule in best.RULES)
        gaussian, plain = (side.sort_values("seed") for side in sides)
        mutual = 100 * gaussian["ood.auroc_epistemic"].to_numpy()
        entropy = 100 * plain["ood.auroc_entropy"].to_numpy()
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for cell, scores in zip((cells[1], cells[3]), (entropy, mutual), strict=True):
            assert float(cell.split()[0].strip("*")) == pytest.approx(scores.mean(), abs=0.0051)
        assert float(cells[4].split()[0]) == pytest.approx((mutual - entropy).mean(), abs=0.0051)
        assert float(cells[5]) == pytest.approx(ttest_rel(mutual, entropy).pvalue, abs=0.00051)


def test_the_curves_are_the_means_over_seeds_by_round(results):
    rows = best.read(results)
    first = best.picture(results).axes[0]
    for line in first.lines:
        of_it = rows[(rows["dataset"] == "fashionmnist") & (rows["rule"] == line.get_label())]
        means = 100 * of_it.groupby("round")["accuracy"].mean()
        assert np.allclose(line.get_xdata(), means.index)
        assert np.allclose(line.get_ydata(), means)
    assert {line.get_label() for line in first.lines} == set(best.RULES)


def test_a_temperature_has_rows_of_its_own_and_is_not_in_the_curves(results, tmp_path):
    rows = best.read(results).assign(**{"untempered.accuracy": np.nan, "untempered.nll": np.nan})
    end = (rows["round"] == ROUNDS[-1]) & (rows["dataset"] == "cifar10")
    rows.loc[end, ["untempered.accuracy", "untempered.nll"]] = 0.125
    write_table(tmp_path, [rows])
    text = best.headline(result_rows(best.read(tmp_path)), (ACCURACY, NLL))
    names = [line.split("|")[2].strip() for line in text.splitlines()[2:]]
    assert names == ["RKLB", "FedAvg", "RKLB", "RKLB, T", "FedAvg", "FedAvg, T"]
    assert text.count("12.50 ± 0.00") == text.count("0.125 ± 0.000") == 2
    axes = best.picture(tmp_path).axes
    assert axes[3].lines[0].get_ydata()[-1] == 12.5 and axes[0].lines[0].get_ydata()[-1] != 12.5


@pytest.mark.parametrize("dataset", best.NAMES)
def test_of_each_rule_the_choice_is_the_least_nll_that_was_tried(dataset, tmp_path):
    rng, nll = np.random.default_rng(0), {rule: [] for rule in best.RULES}
    for number, folder in enumerate(best.CHOICES[dataset]):
        rows = []
        for rule in best.RULES:
            nll[rule].append(rng.uniform())
            rows.append(
                {
                    "format": FORMAT, "run": f"{folder}-{rule}", "rule": rule, "rounds": 1,
                    "round": 1, "pixels": "unit", "augment": "flip", "lr": 0.1 + number,
                    "nll": nll[rule][-1], "kl_weight": 0.003 * (1 + number), "weight_decay": 0.0001,
                    "local_epochs": 2, "batch_size": 32, "normalise": "none",
                    "server_momentum": 0.0, "bayesian_layers": 3 if rule == "RKLB" else 0,
                    **({"cycle": 5} if "snapshots" in folder else {}),
                }
            )  # fmt: skip
        (tmp_path / folder).mkdir()
        write_table(tmp_path / folder, [pd.DataFrame(rows)])
    head, _, *lines = best.choice_table(tmp_path, dataset).splitlines()
    assert [cell.strip() for cell in head.split("|")[2:-1]] == ["rounds", "KL weight", "lr", "NLL"]
    for rule in best.RULES:
        bold = [line for line in lines if line.startswith(f"| **{rule}**")]
        assert len(bold) == 1 and f"**{min(nll[rule]):.4f}**" in bold[0]
    snapshots = sum("snapshots" in folder for folder in best.CHOICES[dataset])
    assert sum("snapshots every 5" in line for line in lines) == snapshots * len(best.RULES)
    assert all(("0.003" in line) == ("RKLB" in line) for line in lines if "| 0.1 |" in line)
