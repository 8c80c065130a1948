"""When a run that does not wait has the accuracy of the one that waits for all."""

import pandas as pd
import pytest

from fedbary.study.table import FORMAT, write_table
from findings.asynchronous import page


@pytest.fixture
def results(tmp_path):
    """Rounds that gain a point each, and aggregates of all that gain as much in half the time."""
    rows = []
    for seed in range(2):
        for mode, seconds in (("rounds", 10.0), ("async", 5.0)):
            for number in range(21):
                rows.append(
                    {
                        "format": FORMAT, "run": f"{mode}-{seed}", "dataset": "digits",
                        "seed": seed, "rounds": 20, "alpha": 0.1, "method": "barycentre",
                        "rule": "FedAvg", "mode": mode, "wait_for": 1.0, "deadline": "none",
                        "round": number, "clients": 10, "buffer": 10,
                        "virtual_seconds": seconds * number, "nll": 1.0,
                        "accuracy": 0.5 + 0.01 * min(number, 16),
                    }
                )  # fmt: skip
    write_table(tmp_path, [pd.DataFrame(rows)])
    return tmp_path


def test_the_time_is_that_of_the_first_aggregate_with_the_accuracy(results):
    rows = page.reached(page.read(results)).set_index("waits")
    assert rows.loc[page.ALL, "time"].tolist() == [160, 160]
    assert rows.loc[page.ASYNC, "time"].tolist() == [80, 80]
    assert rows.loc[page.ASYNC, "part"].tolist() == [0.4, 0.4]
    assert rows.loc[page.ASYNC, "first"].tolist() == [0.5, 0.5]
    near = page.reached(page.read(results), near=0.0101).set_index("waits")
    assert near.loc[page.ASYNC, "time"].tolist() == [75, 75]


def test_aggregates_of_few_replies_are_averaged(results):
    table = page.read_table(results).assign(buffer=2)
    write_table(results, [table])
    rows = page.reached(page.read(results)).set_index("waits")
    assert rows.loc[page.ASYNC, "time"].tolist() == [100, 100]


def test_a_run_that_never_gets_there_has_no_time(results):
    table = page.read(results)
    table.loc[table["waits"] == page.ASYNC, "accuracy"] -= 0.3
    rows = page.reached(table).set_index("waits")
    assert rows.loc[page.ASYNC, "time"].isna().all()
