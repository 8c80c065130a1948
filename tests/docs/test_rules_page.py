"""Tables and picture of the comparison of rules are right, also where a score is missing."""

import shutil

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedbary.report.differences import better
from fedbary.settings.config import resolve
from fedbary.study.table import FORMAT, read_run, write_table
from findings._pairs import of_pair
from findings.rules import draws
from findings.rules import page as rules
from server_app.engine.inline import run_inline

SEEDS, ROUNDS = 5, (0, 1, 2)
LOST = ("RKLB", 3)
"""A run whose last NLL is not finite."""


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
                        "format": FORMAT, "run": f"{arm}-{seed}", "rule": arm.split()[0],
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
    table = rules.pairs_table(rules.result_rows(rules.read(results)), rules.BRIER)
    one, two = (last(results, arm, "brier") for arm in ("RKLBMean", "WB"))
    _, effect, difference, better, t_test, wilcoxon, signed = cells(table, "RKLBMean − WB")
    assert effect == "its mean" and better == f"{int((one < two).sum())} of {SEEDS}"
    assert float(difference.split()[0]) == pytest.approx(float((one - two).mean()), abs=6e-4)
    assert float(t_test) == pytest.approx(stats.ttest_rel(one, two).pvalue, abs=6e-4)
    assert float(wilcoxon) == pytest.approx(stats.wilcoxon(one, two).pvalue, abs=6e-4)
    shares, equal = signed.removesuffix(")").split(" (± ")
    assert sum(map(float, shares.split("/"))) == pytest.approx(1, abs=0.02)
    assert float(equal) == pytest.approx(np.percentile(abs(one - two), 25), abs=6e-5)


def test_a_pair_s_row_of_a_round_is_that_of_the_tests_over_seeds_in_it(results):
    rows = rules.read(results)
    found = cells(rules.rounds_table(rows, rules.BRIER), "RKLBMean − WB | 1")
    now = rows[rows["round"] == 1].pivot(index="seed", columns="arm", values="brier")
    assert found[3] == f"{int((now.RKLBMean < now.WB).sum())} of {SEEDS}"
    assert float(found[4]) == pytest.approx(stats.ttest_rel(now.RKLBMean, now.WB).pvalue, abs=6e-4)
    assert float(found[5]) == pytest.approx(stats.wilcoxon(now.RKLBMean, now.WB).pvalue, abs=6e-4)


def test_ties_are_nobody_s_wins():
    def told(metric, one, two):
        sides = (
            {"side": s, "seed": i, metric.column: v}
            for s, vs in (("a", one), ("b", two))
            for i, v in enumerate(vs)
        )
        return better(of_pair(pd.DataFrame(sides), ("a", "b"), metric))

    one, two = [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]
    assert told(rules.BRIER, one, two) == told(rules.ACCURACY, one, two) == "1 of 3, 1 equal"
    assert told(rules.BRIER, [-4.0, -3.0, -2.0], two) == "3 of 3"


def test_where_a_score_is_missing_the_rows_and_the_picture_say_of_how_many_pairs(results):
    text = rules.tables(results)
    assert f"({SEEDS - 1} of {SEEDS} pairs)" in cells(text, "RKLB − WB")[2]
    assert "pairs" not in cells(text, "RKLBMean − WB")[2]
    assert "RKLBVariance" not in text and "FedAvg" not in text
    by_round, at_end = rules.picture(results).axes
    assert len(by_round.lines) == 3 + 1  # three effects are there, and the line of no difference
    shown = [label.get_text() for label in at_end.get_yticklabels()]
    assert shown == ["RKLB − WB", "RKLBMean − WB", f"{rules.AGAIN} − WB", "RKLB − RKLBMean"]
    assert [text.get_text() for text in at_end.texts] == [
        f"{SEEDS} pairs"
    ] * 2  # the others lack one


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Two rules' runs and the null, at two seeds; one folder is not there any more."""
    folder = tmp_path_factory.mktemp("kept")
    words = {
        "protocol": "short", "engine": "inline", "device": "cpu", "clients": 3, "rounds": 1,
        "local_epochs": 1, "samples": draws.NUMBERS[0], "pictures": False, "train_fraction": 0.3,
    }  # fmt: skip
    rows = []
    for rule, replicate in (("RKLB", 0), ("WB", 0), ("WB", 1)):
        for seed in range(2):
            run = folder / "runs" / f"{rule}-{replicate}-{seed}"
            run_inline(resolve({**words, "rule": rule, "replicate": replicate, "seed": seed}), run)
            rows.append(read_run(run.name, run))
    write_table(folder, rows)
    shutil.rmtree(folder / "runs" / "RKLB-0-1")
    return folder


def test_kept_posteriors_score_as_the_runs_did_with_their_draws_and_otherwise_with_more(
    kept, monkeypatch, capsys
):
    assert "draws" not in rules.tables(kept)
    monkeypatch.setattr("sys.argv", ["draws", str(kept)])
    draws.main()
    found = pd.read_csv(kept / rules.DRAWS).set_index(["run", "draws"])
    runs = rules.result_rows(rules.read(kept)).set_index("run")
    assert set(found.index) == {
        (run, number) for run in runs.index if run != "RKLB-0-1" for number in draws.NUMBERS
    }
    columns = [metric.column for metric in draws.METRICS]
    own, more = (found.xs(number, level="draws") for number in draws.NUMBERS)
    assert own["arm"].to_dict() == runs.loc[own.index, "arm"].to_dict()
    expected = runs.loc[own.index, columns].astype(float)
    pd.testing.assert_frame_equal(own[columns], expected, rtol=1e-4, check_names=False)
    assert (more["nll"] != own["nll"]).all()
    made = rules.draws_table(pd.read_csv(kept / rules.DRAWS))
    assert made in capsys.readouterr().out and made in rules.tables(kept)


def test_pairs_of_a_number_of_draws_are_those_of_its_rows(results):
    rows = rules.result_rows(rules.read(results))
    both = pd.concat([rows.assign(draws=50), rows.assign(draws=100, ece_15=rows["ece_15"] ** 2)])
    table = rules.draws_table(both)
    for number, power in ((50, 1), (100, 2)):
        one, two = (last(results, arm, "ece_15") ** power for arm in ("RKLBMean", "WB"))
        _, _, difference, better_, t_test, *_ = cells(table, f"RKLBMean − WB | {number}")
        assert float(difference.split()[0]) == pytest.approx(100 * (one - two).mean(), abs=0.006)
        assert better_ == f"{int((one < two).sum())} of {SEEDS}"
        assert float(t_test) == pytest.approx(stats.ttest_rel(one, two).pvalue, abs=6e-4)
