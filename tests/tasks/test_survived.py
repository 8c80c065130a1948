"""What sites tell of a survival model after the last round is that of their rows, and no more."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lifelines.utils import concordance_index
from runs_of import lines
from test_glm import fitted, settings_of, sites_of
from test_survival import FLAT, rossi

import fedbary
from fedbary import client_app
from fedbary.data.sites import Site
from fedbary.errors import SettingError
from fedbary.scores.survival import concordance
from fedbary.server_app import run as server_run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.study.table import read_run
from fedbary.tasks import task_of
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
    assert read_run("run", folder / "run")["c_index"].iloc[-1] == c
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
        known = {"pairs", "sites", "proportional", "tested", "round"}
        assert {*held.told} == known | more and "cuts" not in held.facts
    assert len(survival_of(held)["time"]) == 4


def test_hospitals_keep_to_their_limit_and_one_that_counts_years_is_named(tmp_path):
    rng, nodes, heard = np.random.default_rng(0), [], []
    site, table = rng.integers(0, 3, 432), rossi()[["fin", "age", "prio", "time", "event"]]
    table = table.assign(fin=np.where(table.fin == 1, "yes", "no"), time=7 * table.time)
    for number in range(3):
        rows = table[site == number]
        rows = rows.assign(time=rows.time / 365.25) if number == 1 else rows
        rows.to_csv(tmp_path / f"{number}.csv", index=False)
        place = {"data-path": f"{tmp_path}/{number}.csv", "state-path": f"{tmp_path}/of {number}"}
        nodes.append({"name": f"site {number}", "budget": 2.0, "min-cell": 6, **place})

    class Listening(InlineGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            if message.content["config"].get("question") in ("risk-groups", "curves"):
                heard.extend(reply.content["metrics"].items())
            return reply

    words = {**FLAT, "target": "time", "clients": 3, "intervals": 3}
    settings = settings_of(tmp_path, table.sample(80, random_state=0), **words)
    server_run(Listening(client_app.app, nodes, settings.model_dump()), settings, tmp_path / "run")
    assert [name for name, _ in heard].count("risk-groups") == 3 == len(heard) / 2
    for name, numbers in heard:
        if name == "curves":
            at_risk = torch.tensor(numbers).view(3, 3, -1)[:, 0]
            assert ((at_risk == 0) | (at_risk >= 6)).all()
        else:
            rows, _, events, _ = torch.tensor(numbers).view(4, -1)
            assert ((events == 0) | (events >= 6)).all()
            assert ((rows == events) | (rows - events >= 6)).all()
    (line,) = lines(tmp_path / "run")[0]["cautions"]
    assert line.startswith("column time may have another unit at site 1")
    assert "years and days" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"model": "cox"}, "perhaps family=cox"),
        ({"model": "hazard"}, "perhaps family=hazard"),
        ({"evaluate_on": "validation"}, "fedbary evaluate scores further rows"),
        ({"id": "prio"}, "one row a name"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_way_out(tmp_path, words, said):
    with pytest.raises(SettingError, match=said):
        task_of(settings_of(tmp_path, rossi(), **FLAT, target="time", **words)).signature()


def test_a_site_tells_no_more_times_than_the_settings_say(tmp_path):
    task = task_of(settings_of(tmp_path, rossi(), **FLAT, target="time", family="cox"))
    shard = task.shard(Site("partition 0", "", 0, 4), task.signature())
    with pytest.raises(ValueError, match="0 intervals"):
        task.answer("curves", shard, {"cuts": [10.0], "min-cell": 0}, {})
    with pytest.raises(ValueError, match="tell no time"):
        task.answer("sums", shard, {"of": "event-times", "shift": [0.0]}, {})


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
