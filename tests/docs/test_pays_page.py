"""What the page on whether being Bayesian pays says of RKLB beside each of its rivals."""

import pandas as pd
import pytest

from findings._pairs import of_pair
from findings.pays import page as pays

SETTINGS = {
    "twenty rounds": (10, 20, 0.5, 0.05),
    "five rounds": (10, 5, 0.5, 0.05),
    "label skew, Dirichlet 0.1": (10, 20, 0.1, 0.05),
    "fifty small clients": (50, 20, 0.5, 0.1),
    "fifty, step size of ten": (50, 20, 0.5, 0.05),
    "all data in one place": (1, 20, 0.5, 0.05),
}
SEEDS = 5
RULES = (*pays.RIVALS.values(), pays.GAUSSIAN)


def runs(lead):
    """Scores of all arms, of which each is better by `lead(rule, condition)`.

    Beside that each has the same scores of five seeds in another order: none is ahead in the mean.
    The rows are in no order, as runs that ended side by side are.
    """
    rows = []
    for condition, (clients, rounds, alpha, lr) in SETTINGS.items():
        where = {"clients": clients, "rounds": rounds, "alpha": alpha, "lr": lr}
        for seed in range(SEEDS):
            for order, rule in enumerate(RULES, 1):
                chance, better = 0.01 * (order * seed % SEEDS), lead(rule, condition)
                scores = {
                    metric.column: chance - better if metric.lower_is_better else chance + better
                    for metric in (*pays.METRICS, *pays.UNTEMPERED)
                }
                rows.append({"rule": rule, "seed": seed, **where, **scores})
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def cells(table):
    """The cells of a table in Markdown by its first column, and its head."""
    head, _, *lines = ([c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines())
    return head, {name: rest for name, *rest in lines}


def test_every_condition_has_its_runs_and_no_other():
    rows = runs(lambda *_: 0.0)
    found = {name: of_it(rows) for name, of_it in pays.CONDITIONS.items()}
    assert found.keys() == SETTINGS.keys()
    assert sum(found.values()).eq(1).all()
    for name, (clients, rounds, alpha, lr) in SETTINGS.items():
        of_it = rows[found[name]]
        assert {*zip(of_it.clients, of_it.rounds, of_it.alpha, of_it.lr, strict=True)} == {
            (clients, rounds, alpha, lr)
        }


@pytest.mark.parametrize("rival", pays.RIVALS)
@pytest.mark.parametrize("ahead", ["RKLB", "FedAvg"])
def test_who_is_ahead_is_named_where_one_is_and_beside_that_rival_alone(rival, ahead):
    winner = pays.GAUSSIAN if ahead == "RKLB" else pays.RIVALS[rival]
    even = [] if ahead == "FedAvg" else [r for r in pays.RIVALS.values() if r != pays.RIVALS[rival]]

    def lead(rule, condition):
        return 1.0 * (condition == "fifty small clients" and rule in (winner, *even))

    rows = runs(lead)
    for other in pays.RIVALS:
        head, body = cells(pays.summary_table(rows, other))
        column = head.index("fifty small clients") - 1
        for line in body.values():
            shown = line.pop(column)
            assert shown == f"**{ahead}**" if other == rival else not shown.startswith("**")
            assert not any(cell.startswith("**") for cell in line)


def test_a_condition_s_row_has_every_arm_and_both_differences():
    rows = runs(lambda rule, _: 0.3 * (rule == "WB"))
    rows = rows[pays.CONDITIONS["five rounds"](rows)]
    head, body = cells(pays.condition_table(rows))
    line = dict(zip(head[1:], body["NLL"], strict=True))
    for rival, rule in pays.RIVALS.items():
        of_it = rows[rows.rule == rule]
        assert line[rival] == pays.NLL.show(of_it["nll"])
        found = of_pair(rows.assign(side=rows.rule), (pays.GAUSSIAN, rule), pays.NLL)
        assert line[f"RKLB − {rival} [95 %]"] == pays.NLL.difference(found)
    assert {f"{metric.label}, without T" for metric in (pays.NLL, pays.BRIER)} <= body.keys()
