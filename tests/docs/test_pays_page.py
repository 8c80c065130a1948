"""What the page on whether being Bayesian pays says of all seeds, and of those that were added."""

import pandas as pd
import pytest

from benchmarks import pays
from benchmarks._pairs import by_seed, compared

SETTINGS = {
    "twenty rounds": (10, 20, 0.5),
    "five rounds": (10, 5, 0.5),
    "label skew, Dirichlet 0.1": (10, 20, 0.1),
    "fifty small clients": (50, 20, 0.5),
    "all data in one place": (1, 20, 0.5),
}
ADDED = ("five rounds", "fifty small clients")
"""The conditions at which seeds were added."""


def runs(lead):
    """Scores of both rules, of which RKLB's are better by `lead(condition, seed)`.

    Beside that RKLB has FedAvg's scores of five seeds in another order: it is ahead in no mean.
    The rows are in no order, as runs that ended side by side are.
    """
    rows = []
    for condition, (clients, rounds, alpha) in SETTINGS.items():
        for seed in range(2 * pays.ADDED if condition in ADDED else pays.ADDED):
            where = {"clients": clients, "rounds": rounds, "alpha": alpha, "seed": seed}
            for rule, order, better in (("FedAvg", 1, 0.0), ("RKLB", 2, lead(condition, seed))):
                chance = 0.01 * (order * seed % pays.ADDED)
                scores = {
                    metric.column: chance - better if metric.lower_is_better else chance + better
                    for metric in pays.METRICS
                }
                rows.append({"rule": rule, **where, **scores})
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def cells(table):
    """The cells of a table in Markdown by its first column, and its head."""
    head, _, *lines = ([c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines())
    return head, {name: rest for name, *rest in lines}


def test_every_condition_has_its_runs_and_no_other():
    rows = runs(lambda *_: 0.0)
    found = {name: of_it(rows) for name, of_it in pays.CONDITIONS.items()}
    assert sum(found.values()).eq(1).all()
    for name, (clients, rounds, alpha) in SETTINGS.items():
        of_it = rows[found[name]]
        assert {*zip(of_it.clients, of_it.rounds, of_it.alpha, strict=True)} == {
            (clients, rounds, alpha)
        }


def test_the_added_seeds_are_judged_without_those_that_called_for_them():
    """A lead of the first seeds alone is not in the table; one of the added seeds is, in bold."""
    for ahead in (False, True):
        rows = runs(lambda _, seed, ahead=ahead: 1.0 * ((seed >= pays.ADDED) == ahead))
        head, body = cells(pays.confirmation_table(rows))
        assert head[1::3] == [f"{name} [95 %]" for name in ADDED]
        assert all(cell.startswith("**") == ahead for line in body.values() for cell in line[::3])
        if ahead:
            counts = {count for line in body.values() for count in line[1::3]}
            assert counts == {f"{pays.ADDED} of {pays.ADDED}"}
        new = rows[(rows.seed >= pays.ADDED) & pays.CONDITIONS["five rounds"](rows)]
        plain, gaussian = pays.sides(new)
        pair = compared(by_seed(gaussian, pays.NLL), by_seed(plain, pays.NLL))
        assert body["NLL"][0].strip("*") == pays.NLL.difference(pair)
        ahead_at = (by_seed(gaussian, pays.NLL) - by_seed(plain, pays.NLL) < 0).sum()
        assert body["NLL"][1].split(",")[0] == f"{ahead_at} of {pays.ADDED}"


@pytest.mark.parametrize("rule", ["RKLB", "FedAvg"])
def test_who_is_ahead_is_named_where_one_is_and_nowhere_else(rule):
    lead = 1.0 if rule == "RKLB" else -1.0
    rows = runs(lambda condition, _: lead * (condition == "fifty small clients"))
    head, body = cells(pays.summary_table(rows))
    column = head.index("fifty small clients") - 1
    for line in body.values():
        assert line.pop(column) == f"**{rule}**"
        assert not any(cell.startswith("**") for cell in line)
