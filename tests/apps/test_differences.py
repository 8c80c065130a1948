"""A server that asks a site twice, of rows that differ by few, learns no row as the difference."""

import numpy as np
import pandas as pd
import pytest
from runs_of import INLINE

from fedbary import client_app
from fedbary.data.sites import Limits
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.look import hold
from fedbary.settings.config import resolve

ROWS, ROW, LEVEL = 120, 7, slice(20, 25)
FEWEST = Limits().min_rows


def table(seed):
    """Rows of which a few lack a cell, or have a rare level."""
    draw = np.random.default_rng(seed)
    held = pd.DataFrame(draw.normal(size=(ROWS, 3)), columns=["u", "v", "dose"])
    held["stage"], held["arm"] = draw.choice([*"ab"], ROWS), draw.choice([*"xy"], ROWS)
    held["ill"] = draw.choice([*"ny"], ROWS)
    return held


@pytest.fixture
def folder(tmp_path):
    server, site = table(0), table(1)
    server.loc[:9, ["stage", "arm"]] = ["c", "z"]
    site.loc[ROW, "dose"], site.loc[ROW, "stage"] = np.nan, "c"
    site.loc[LEVEL, "arm"] = "z"
    server.to_csv(tmp_path / "server.csv", index=False)
    site.to_csv(tmp_path / "site.csv", index=False)
    return tmp_path


def first_sums(metrics):
    """The rows and the sums of u and v, if an answer has sums."""
    return (metrics["count"], np.array(metrics["total"][:2])) if "total" in metrics else None


class Enough(Exception):
    """The attack has what it needs."""


def told(folder, node=None, enough=first_sums, **words):
    """What is enough of a site's answers; at first the rows and the sums of u and v."""
    usual = {"task": "glm", "target": "ill", "terms": "u v", "clients": 1, "rounds": 1}
    if looks := words.get("task") == "tables":
        usual = {"target": "ill", "clients": 1}
    chosen = resolve({**INLINE, **usual, "dataset": f"{folder}/server.csv", **words})
    site = {"data-path": f"{folder}/site.csv", "state-path": f"{folder}/state", **(node or {})}
    found = []

    class Grid(InlineGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            for metrics in reply.content.metric_records.values() if reply.has_content() else ():
                if (one := enough(metrics)) is not None:
                    found.append(one)
                    raise Enough
            return reply

    grid = Grid(client_app.app, [site], chosen.model_dump())
    with pytest.raises(Enough):
        if looks:
            hold(grid, chosen, True)
        run(grid, chosen, folder / f"run {len([*folder.glob('run *')])}")
    return found[0]


def hidden(one, other):
    """Whether the rows of two answers are the same, or differ by as many as a site must have."""
    count = abs(one[0] - other[0])
    return np.allclose(one[1], other[1]) if count == 0 else count >= FEWEST


def other_cell(held):
    return held.assign(u=held.u.where(held.index != ROW, 5.0))


KINDS = {
    "an empty cell": {"terms": "u v dose"},
    "a level of its own": {"terms": "u v stage"},
    "a word that stands for an empty cell": {"terms": "u v stage", "missing_words": "c"},
    "a level that a tighter min_cell leaves out": {"terms": "u v arm", "min_cell": 6},
    "a row that is gone": lambda held: held.drop(index=ROW),
    "a row that is new": lambda held: pd.concat([held, table(2)[:1]]),
    "a row that has changed": other_cell,
}
"""What makes the rows of a second run differ from those of the first."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_of_two_runs_differ_by_none_or_by_as_many_as_a_site_must_have(folder, kind):
    asked, words = KINDS[kind], {}
    one = told(folder)
    if callable(asked):
        held = asked(pd.read_csv(folder / "site.csv"))
        held.to_csv(folder / "site.csv", index=False)
    else:
        words = asked
    assert hidden(one, told(folder, **words))


def test_a_run_of_fewer_columns_after_one_of_more_leaves_out_the_same_rows(folder):
    more, fewer = told(folder, **KINDS["an empty cell"]), told(folder)
    assert more[0] == fewer[0] == ROWS - 1 and (more[1] == fewer[1]).all()


@pytest.mark.parametrize("order", [1, -1])
def test_a_look_and_a_run_differ_by_as_many(folder, order):
    """A look has all rows, also of a node that names no limits."""
    asked = [{"task": "tables"}, KINDS["an empty cell"]]
    one, other = (told(folder, **words) for words in asked[::order])
    assert hidden(one, other)


def test_two_runs_of_survival_differ_by_as_many(folder):
    for name in ("server", "site"):
        held = pd.read_csv(folder / f"{name}.csv")
        held.assign(days=held.u.abs() + 1, died=held.index % 2).to_csv(
            folder / f"{name}.csv", index=False
        )
    words = {"task": "survival", "target": "days", "event": "died"}
    one, other = (told(folder, **words, **more) for more in ({}, KINDS["an empty cell"]))
    assert hidden(one, other)


def test_two_honest_runs_show_no_patient_of_a_level_as_their_difference(folder):
    """One patient of a level lacks a cell: the rows that leave with it have that level, too."""
    draw, rows = np.random.default_rng(5), 600
    held = pd.DataFrame(draw.normal(size=(rows, 2)), columns=["u", "dose"])
    held["stage"] = np.repeat([*"abc"], [300, 250, 50])
    held["ill"] = draw.choice([*"ny"], rows)
    for name, empty in (("server", 0), ("site", rows - 1)):
        held.loc[held.index == empty, "dose"] = np.nan
        held.to_csv(folder / f"{name}.csv", index=False)
        held = held.fillna(1.0)
    asked = ({"terms": "u stage"}, {"terms": "u stage dose"})
    found = [told(folder, enough=lambda m: m.get("total"), **words) for words in asked]
    levels = np.array([[n for n in each if n == int(n) and n > 9][:3] for each in found])
    assert levels[0].tolist() == [300, 250, 50]
    assert (levels[0] - levels[1] >= Limits().min_cell).all()


def test_complete_rows_are_the_same_in_runs_of_any_terms(folder):
    one, other = (told(folder, missing="complete", terms=each) for each in ("u v", "u v dose"))
    assert one[0] == other[0] == ROWS - 1 and np.allclose(one[1], other[1])


@pytest.mark.parametrize("kind", ["an empty cell", "a level of its own"])
def test_without_limits_the_row_is_the_difference(folder, kind):
    row = pd.read_csv(folder / "site.csv").loc[ROW, ["u", "v"]].to_numpy(float)
    (n, one), (m, other) = (told(folder, {"budget": 0}, **words) for words in ({}, KINDS[kind]))
    assert n - m == 1 and np.allclose(one - other, row)
