"""What the scripts of findings/ say of who is ahead is so, also where a score is missing."""

import numpy as np
import pandas as pd
import pytest
import yaml
from runs_of import network, same
from scipy.stats import ttest_1samp, ttest_rel

from fedbary.report.results import ACCURACY, BRIER, DETECTION, ECE_15, ECE_100, NLL, format_wins
from fedbary.settings.config import resolve
from fedbary.study.table import FORMAT, read_table, result_rows, write_table
from findings._docs import ROOT
from findings.best import page as best
from findings.maker import detectable, of_pair

ROUNDS, ECE = (1, 5, 6), (ECE_15, ECE_100)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder, rng, rows = tmp_path_factory.mktemp("best"), np.random.default_rng(0), []
    columns = [metric.column for metric in (ACCURACY, NLL, *ECE, BRIER)]
    columns += [metric.column for metric in DETECTION]
    columns += [f"by_chance.{metric.column}" for metric in ECE]
    for dataset in best.NAMES:
        for rule in best.RULES:
            for seed in range(3):
                for number in ROUNDS:
                    rows.append(
                        {
                            "format": FORMAT, "run": f"{dataset}-{rule}-{seed}", "rule": rule,
                            "dataset": dataset, "method": "barycentre", "seed": seed,
                            "rounds": ROUNDS[-1], "local_epochs": 2, "round": number,
                            **{column: rng.uniform() for column in columns},
                        }
                    )  # fmt: skip
    write_table(folder, [pd.DataFrame(rows)])
    return folder


def test_a_target_is_met_where_the_score_itself_meets_it(results):
    last = result_rows(read_table(results))
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
    last = result_rows(read_table(results))
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


def test_ties_are_nobody_s_wins():
    def told(metric, one, two):
        sides = (
            {"side": s, "seed": i, metric.column: v}
            for s, vs in (("a", one), ("b", two))
            for i, v in enumerate(vs)
        )
        return format_wins(of_pair(pd.DataFrame(sides), ("a", "b"), metric))

    one, two = [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]
    assert told(BRIER, one, two) == told(ACCURACY, one, two) == "1 of 3, 1 equal"
    assert told(BRIER, [-4.0, -3.0, -2.0], two) == "3 of 3"


def test_heads_on_pretrained_features_begin_from_the_same_bits():
    grid = yaml.safe_load((ROOT / "findings/pretrained/grid.yaml").read_text(encoding="utf-8"))
    parts = "method", "rule", "bayesian_layers", "inference", "covariance", "momentum"
    sides = [{part: block[part] for part in parts if part in block} for block in grid["grid"]]
    heads = [
        network(resolve({"model": "linear", "seed": 2, **side})).state_dict() for side in sides
    ]
    assert {"LDA", "SCAFFOLD", "PVI"} <= {side.get("method") for side in sides}
    assert all(same(heads[0], head) for head in heads[1:])


def test_what_could_be_seen_is_seen_four_times_in_five():
    """By 10,000 experiments of differences of that mean, and of their own standard deviation."""
    rng, scores = np.random.default_rng(0), np.random.default_rng(1).normal(size=(2, 6))
    rows = pd.DataFrame(
        {"side": side, "seed": seed, NLL.column: score}
        for side, of_it in zip("ab", scores, strict=True)
        for seed, score in enumerate(of_it)
    )
    found = of_pair(rows, ("a", "b"), NLL)
    std = (scores[0] - scores[1]).std(ddof=1)
    drawn = rng.normal(detectable(found), std, (10_000, 6))
    assert (ttest_1samp(drawn, 0, axis=1).pvalue < 0.05).mean() == pytest.approx(0.8, abs=0.015)
