"""What sites tell of a survival model after the last round is that of their rows, and no more."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lifelines.utils import concordance_index
from test_glm import fitted, sites_of
from test_survival import FLAT, rossi

import fedbary
from fedbary.scores.survival import concordance
from fedbary.tasks._survived import (
    answer_cells,
    answer_curves,
    ask_cells,
    ask_curves,
    ask_pairs,
    edges,
    joined,
)
from fedbary.tasks.survival import parts
from fedbary.trained.risks import calibration, hazards, picture, survival_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of rossi with a column of levels, its table and the site of each row."""
    folder = tmp_path_factory.mktemp("hazard")
    table = rossi().assign(race=lambda rows: np.where(rows.race == 1, "black", "other"))
    *_, settings = fitted(folder, table, **FLAT, target="time")
    return fedbary.load(folder / "run"), table, sites_of(settings), folder


def test_c_within_sites_is_the_sum_of_lifelines_pairs(run):
    held, table, sites, folder = run
    found = hazards(held, held.read(folder / "rows.csv")).predictor.float().numpy()
    right, every = 0.0, 0
    for site in np.unique(sites):
        here = sites == site
        time, event = table.time[here].to_numpy(), table.event[here].to_numpy()
        pairs = (event[:, None] == 1) & (
            (time > time[:, None]) | ((time == time[:, None]) & (event == 0))
        )
        every += pairs.sum()
        right += pairs.sum() * concordance_index(time, -found[here], event)
    c, low, high = concordance(held.told["pairs"].numpy())
    assert c == pytest.approx(right / every) and low < c < high
    (line,) = [note for note in held.coefficients().notes if note.startswith("C = ")]
    assert f"C = {c:.3f} ({low:.3f} to {high:.3f}) by {every} pairs within 4 sites" in line


def test_cells_are_the_rows_by_predicted_risk(run):
    held, table, _, folder = run
    cells = held.told["cells"]
    risk = hazards(held, held.read(folder / "rows.csv")).risk
    until = table.event * (table.time <= float(held.told["at"]))
    assert cells.sum(1)[:3].numpy() == pytest.approx([len(table), float(risk.sum()), until.sum()])
    assert float(cells[3].sum()) == pytest.approx(float(cells[2].sum()), rel=1e-3)  # at the mode
    bins = calibration(held)
    assert (np.diff(bins.risk) > 0).all() and len(bins.rows) == 10
    assert ((bins.low < bins.risk) & (bins.risk < bins.high)).sum() >= 8


def test_curves_are_those_of_each_level(run):
    held, table, *_ = run
    found = pd.DataFrame(survival_of(held))
    assert {*found.group} == {"all", "race=black", "race=other"}
    for group, curve in found.groupby("group"):
        rows = table if group == "all" else table[table.race == group.partition("=")[2]]
        time, event = (torch.tensor(rows[name].to_numpy()) for name in ("time", "event"))
        inside, events = parts(time, event, torch.tensor(curve.time.to_numpy()))
        assert curve["time at risk"].to_numpy() == pytest.approx(inside.sum(0)[:-1])
        assert curve["events"].to_numpy() == pytest.approx(events.sum(0)[:-1])
        before = [0, *curve.time[:-1]]
        assert [(rows.time > cut).sum() for cut in before] == curve["rows at risk"].tolist()
    assert len(picture(held).axes) == 4


def test_cox_tells_curves_only_if_asked(tmp_path):
    table = rossi()
    for intervals, more in (("auto", set()), (5, {"curves", "cuts"})):
        folder = tmp_path / str(intervals)
        folder.mkdir()
        fitted(folder, table, **FLAT, target="time", family="cox", intervals=intervals)
        held = fedbary.load(folder / "run")
        assert {*held.told} == {
            "pairs",
            "sites",
            "proportional",
        } | more and "cuts" not in held.facts
    assert len(survival_of(held)["time"]) == 4


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=10, max_size=10))
def test_a_joined_cell_has_enough_of_both_or_none(counts):
    events, others = torch.tensor(counts).double().T
    cells = torch.stack([events + others, events / 2, events, events + 1])
    found = joined(cells, 5)
    rows, _, told, _ = found
    assert ((told == 0) | (told >= 5)).all() and ((rows - told == 0) | (rows - told >= 5)).all()
    whole = cells.sum(1)
    enough = min(whole[2], whole[0] - whole[2]) >= 5
    assert not enough or torch.allclose(found.sum(1), whole)
    assert torch.equal(joined(cells, 0), cells)


@pytest.mark.parametrize("seed", range(5))
def test_a_site_tells_no_curve_of_fewer_rows_than_its_limit(seed):
    torch.manual_seed(seed)
    time, event = torch.rand(30).double() * 10, (torch.rand(30) < 0.5).double()
    inside, events = parts(time, event, torch.tensor([2.0, 5.0, 8.0]).double())
    groups = torch.eye(3)[torch.randint(0, 3, (30,))]
    told = torch.tensor(answer_curves(inside, events, groups, 5)["curves"]).view(3, 3, 4)
    rows = told[:, 0]
    assert ((rows == 0) | (rows >= 5)).all()
    assert not told.transpose(0, 1)[:, rows == 0].any()


def test_answers_that_no_rows_give_are_not_believed():
    torch.manual_seed(0)
    n, f = 40, torch.randn(40).double()
    time, event = torch.rand(n).double() + 0.1, (torch.rand(n) < 0.5).double()
    risk = f.sigmoid()
    cells = answer_cells(f, risk, risk, event, edges(torch.ones(1).double()), 0)
    cuts = torch.tensor([0.3, 0.7]).double()
    curves = answer_curves(*parts(time, event, cuts), torch.ones(n, 1), 0)
    for ask, metrics, wrong in (
        (ask_cells({}, 1.0), cells, {2: 50.0, 15: 9e9, 22: 0.5, 31: np.nan, 0: -1.0}),
        (ask_curves(cuts, 0), curves, {0: 41.0, 3: 99.0, 6: 99.0, 4: 0.5, 7: np.inf}),
        (ask_pairs({}), {"pairs": [20.0, 40.0, 90.0, 100.0, 200.0]}, {0: 41.0, 1: 9e9, 4: 1.0}),
    ):
        (name,), question = metrics, next(ask)
        question.read(metrics, n)
        for place, number in wrong.items():
            numbers = list(metrics[name])
            numbers[place] = number
            with pytest.raises(ValueError):
                question.read({name: numbers}, n)
