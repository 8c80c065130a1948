"""Tables and picture of the comparison of rules are right, also where a score is missing."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from fedbary.aggregation import aggregate
from fedbary.gaussian import Posterior
from fedbary.study.table import FORMAT, write_table
from findings.protocol import normalised_gaa
from findings.rules import page as rules
from findings.rules import rklb_mean, rklb_variance

SEEDS, ROUNDS = 5, (0, 1, 2)
OWN = {"RKLBMean": "findings.rules.rklb_mean:RULE"}
"""Names of rules that lie outside the library."""

LOST = ("RKLB", 3)
"""A run whose last NLL is not finite."""


def posteriors(count):
    rng = torch.Generator().manual_seed(0)
    draws = torch.randn(count, 2, 5, generator=rng)
    return [Posterior({"w": mean}, {"w": log_var}) for mean, log_var in draws]


@pytest.fixture
def results(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for arm in ("RKLB", "WB", "RKLBMean", rules.AGAIN):
        for seed in range(SEEDS):
            for number in ROUNDS:
                scores = {metric.column: rng.uniform() for metric in rules.SHOWN}
                lost = (arm, seed) == LOST and number == ROUNDS[-1]
                rows.append(
                    {
                        "format": FORMAT, "run": f"{arm}-{seed}",
                        "rule": OWN.get(arm, arm.split()[0]), "method": "barycentre",
                        "dataset": "digits",
                        "replicate": int(arm == rules.AGAIN), "seed": seed, "rounds": ROUNDS[-1],
                        "round": number, **scores, **({"nll": np.nan} if lost else {}),
                    }
                )  # fmt: skip
    write_table(tmp_path, [pd.DataFrame(rows)])
    return tmp_path


def last(results, arm, column):
    rows = rules.read(results)
    rows = rows[(rows["arm"] == arm) & (rows["round"] == ROUNDS[-1])]
    return rows.set_index("seed")[column]


def cells(text, start):
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_pair_s_row_is_that_of_the_tests_over_seeds(results):
    rows = rules.result_rows(rules.read(results))
    table = rules.after_the_last(rows, rules.BRIER, rules.holm(rows))
    one, two = (last(results, arm, "brier") for arm in ("RKLBMean", "WB"))
    _, effect, difference, better, t_test, holm, wilcoxon, signed = cells(table, "RKLBMean − WB")
    assert effect == "its mean" and better == f"{int((one < two).sum())} of {SEEDS}"
    assert float(difference.split()[0]) == pytest.approx(float((one - two).mean()), abs=6e-4)
    assert float(t_test) == pytest.approx(stats.ttest_rel(one, two).pvalue, abs=6e-4)
    assert float(holm) >= float(t_test)
    assert float(wilcoxon) == pytest.approx(stats.wilcoxon(one, two).pvalue, abs=6e-4)
    shares, equal = signed.removesuffix(")").split(" (± ")
    assert sum(map(float, shares.split("/"))) == pytest.approx(1, abs=0.02)
    assert float(equal) == pytest.approx(np.percentile(abs(one - two), 25), abs=6e-5)


def test_where_a_score_is_missing_the_rows_and_the_picture_say_of_how_many_pairs(results):
    text = "\n\n".join(rules.tables(results))
    assert f"({SEEDS - 1} of {SEEDS} pairs)" in cells(text, "RKLB − WB")[2]
    assert "pairs" not in cells(text, "RKLBMean − WB")[2]
    assert "RKLBVariance" not in text and "FedAvg" not in text
    assert len(rules.holm(rules.result_rows(rules.read(results)))) == 4 * len(rules.METRICS)
    by_round, at_end = rules.picture(results).axes
    assert len(by_round.lines) == 3 + 1  # three effects are there, and the line of no difference
    shown = [label.get_text() for label in at_end.get_yticklabels()]
    assert shown == ["RKLB − WB", "RKLBMean − WB", f"{rules.AGAIN} − WB", "RKLB − RKLBMean"]
    assert [text.get_text() for text in at_end.texts] == [
        f"{SEEDS} pairs"
    ] * 2  # the others lack one


@pytest.mark.parametrize(
    ("rule", "mean_of", "log_var_of"), [(rklb_mean, "RKLB", "WB"), (rklb_variance, "WB", "RKLB")]
)
def test_a_hybrid_has_one_rule_s_mean_and_the_other_s_variance(rule, mean_of, log_var_of):
    clients, weights = posteriors(4), [3, 1, 0.5, 2]
    found = aggregate(rule.RULE, clients, weights)
    torch.testing.assert_close(found.mean, aggregate(mean_of, clients, weights).mean)
    torch.testing.assert_close(found.log_var, aggregate(log_var_of, clients, weights).log_var)


def test_normalised_gaa_keeps_the_variances_of_equal_posteriors_and_is_eaa_of_equal_weights():
    clients, rule = posteriors(4), normalised_gaa.RULE
    equal = aggregate(rule, clients[:1] * 4, [3, 1, 0.5, 2])
    torch.testing.assert_close(equal.log_var, clients[0].log_var)
    ours, eaa = (aggregate(name, clients, [1] * 4) for name in (rule, "EAA"))
    torch.testing.assert_close(ours.state_dict(), eaa.state_dict())
