"""What a site tells of its rows at most: rows enough, and a budget that no restart resets."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs_of import INLINE, posterior, same, tensors
from runs_of import lines as lines_of

import fedbary
from benchmarks.budgets import small_last
from fedbary import client_app
from fedbary.client_app.limits import in_cells
from fedbary.data.sites import Limits, site_from
from fedbary.errors import RunError, SettingError
from fedbary.runs.answered import in_common, unusual
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve
from fedbary.tasks import task_of

LAPLACE = {
    **INLINE, "task": "tables", "target": "out", "model": "linear", "method": "PVI",
    "inference": "laplace", "covariance": "full", "holdout": 0.0, "rounds": 4,
}  # fmt: skip
ROWS, COLUMNS = 200, 2


@pytest.fixture
def nodes(tmp_path):
    """Three sites' node configs and the server's table, beside them."""
    rng = np.random.default_rng(0)
    for name in ("server", "a", "b", "c"):
        x = rng.normal(size=(ROWS, COLUMNS))
        ill = x.sum(1) + rng.logistic(size=ROWS) > 0
        rows = "".join(f"{u},{v},{'ny'[int(z)]}\n" for (u, v), z in zip(x, ill, strict=True))
        (tmp_path / f"{name}.csv").write_text(f"u,v,out\n{rows}")
    return [
        {"data-path": f"{tmp_path}/{name}.csv", "name": name, "state-path": f"{tmp_path}/of {name}"}
        for name in "abc"
    ]


def numbers_of(reply):
    """How many numbers a reply holds, read from its records."""
    arrays = [a for record in reply.content.array_records.values() for a in record.values()]
    metrics = [v for record in reply.content.metric_records.values() for v in record.values()]
    return sum(math.prod(a.shape) for a in arrays) + sum(np.size(v) or 0 for v in metrics)


def federate(nodes, folder, **words):
    """Run a federation; return its lines, each node's numbers sent, and the errors' texts."""
    sent, errors = dict.fromkeys((each["name"] for each in nodes), 0), []
    held = {"dataset": str(folder / "server.csv"), "clients": len(nodes)}
    chosen = resolve({**LAPLACE, **held, **words})

    class Grid(InlineGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            if reply.has_content():
                sent[nodes[message.metadata.dst_node_id - 2]["name"]] += numbers_of(reply)
            else:
                errors.append(reply.error.reason)
            return reply

    output = folder / f"run {len([*folder.glob('run *')])}"
    run(Grid(client_app.app, nodes, chosen.model_dump()), chosen, output)
    return lines_of(output), sent, errors


def test_a_site_sends_no_more_numbers_than_its_budget_over_all_runs(nodes, tmp_path):
    _, sent, _ = federate(nodes, tmp_path)
    budget = 1.5 * sent["a"] / (ROWS * (COLUMNS + 1))
    nodes[0] |= {"budget": budget, "state-path": str(tmp_path / "counted")}
    counter, total = tmp_path / "counted" / "sent.json", 0
    for _ in range(3):
        lines, sent, errors = federate(nodes, tmp_path)
        total += sent["a"]
        assert json.loads(counter.read_bytes())["numbers"] == total
        assert total <= budget * ROWS * (COLUMNS + 1)
    assert [line["admitted"] for line in lines[1:]] == [2] * 4
    assert not errors  # no site is asked in vain


def test_a_site_past_its_budget_keeps_its_last_factor_in_the_federation(nodes, tmp_path):
    lines, sent, _ = federate(nodes, tmp_path)
    nodes[0] |= {"budget": 0.7 * sent["a"] / (ROWS * (COLUMNS + 1))}
    partly, _, _ = federate(nodes, tmp_path)
    nodes = nodes[1:]
    without, _, _ = federate(nodes, tmp_path)
    assert partly[-1]["admitted"] == 2
    of_all, of_part, of_two = (line[-1]["nll"] for line in (lines, partly, without))
    assert abs(of_part - of_all) < 0.01 * abs(of_two - of_all)


def test_a_run_whose_sites_have_all_told_enough_ends_with_the_reason(nodes, tmp_path):
    _, sent, _ = federate(nodes, tmp_path)
    for each in nodes:
        budget = 0.7 * sent["a"] / (ROWS * (COLUMNS + 1))
        each |= {"budget": budget, "state-path": f"{tmp_path}/new {each['name']}"}
    with pytest.raises(RunError, match="as its budget allows; a larger budget=.* above 3$"):
        federate(nodes, tmp_path, rounds=20)


def test_a_small_site_answers_nothing(nodes, tmp_path):
    nodes[0] |= {"min-rows": ROWS + 1}
    nodes[1] |= {"max-columns": 0.5 * COLUMNS / ROWS}
    lines, sent, errors = federate(nodes, tmp_path)
    assert sent["a"] == sent["b"] == 0 < sent["c"]
    assert [line["admitted"] for line in lines[1:]] == [1] * 4
    assert all("too few rows" in text and str(ROWS) not in text for text in errors)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"numbers": -1, "answers": 0}', b'{"numbers": 0}', b"[1]"]
)
def test_a_damaged_counter_is_no_empty_one(nodes, content, tmp_path):
    (tmp_path / "of a").mkdir()
    (tmp_path / "of a" / "sent.json").write_bytes(content)
    nodes[0] |= {"budget": 100.0}
    lines, sent, _ = federate(nodes, tmp_path, rounds=1)
    assert sent["a"] == 0 and lines[-1]["admitted"] == 2


def test_a_budget_needs_a_folder(nodes, tmp_path):
    nodes[0] |= {"budget": 100.0, "state-path": ""}
    _, sent, errors = federate(nodes, tmp_path, rounds=1)
    assert sent["a"] == 0 and any("state-path" in text for text in errors)


@pytest.mark.parametrize("value", [-1, "many", True, math.nan])
def test_a_limit_is_a_number(value):
    with pytest.raises(SettingError) as caught:
        site_from({"data-path": "x.csv", "budget": value})
    assert caught.value.setting == "node config: budget"


@given(st.lists(st.integers(0, 40), min_size=1), st.integers(0, 40), st.integers(0, 7))
def test_counts_below_points_leave_no_small_cell_and_are_off_by_less(below, seen, least):
    held = sorted(min(count, seen) for count in below)
    told = in_cells(Limits(min_cell=least), {"count": 99, "below": held, "seen": [seen]})
    cells = np.diff([0, *told["below"], *told["seen"]])
    assert told["count"] == 99 and all(cell == 0 or cell >= least for cell in cells)
    assert all(abs(a - b) < max(1, least) for a, b in zip(held, told["below"], strict=True))
    assert in_cells(None, {"below": held, "seen": [seen]}) == {"below": held, "seen": [seen]}


def test_cuts_of_real_sites_are_near_those_of_all_counts(tmp_path):
    """No cell of fewer than five events leaves a site, and the quantiles of all hardly move."""
    rng, found = np.random.default_rng(0), {}
    for name in ("server", "a", "b", "c"):
        time, age = rng.exponential(size=150), rng.normal(size=150)
        table = pd.DataFrame({"age": age, "days": time, "died": rng.random(150) < 0.8})
        table.astype(float).to_csv(tmp_path / f"{name}.csv", index=False)
    words = {**INLINE, "task": "survival", "target": "days", "event": "died", "rounds": 1}
    chosen = resolve({**words, "dataset": f"{tmp_path}/server.csv", "clients": 3})
    for least in (1, 5):
        nodes = [
            {"data-path": f"{tmp_path}/{name}.csv", "min-cell": least, "budget": 0}
            for name in "abc"
        ]
        cells = []

        class Grid(InlineGrid):
            def _answer(self, message, cells=cells):
                reply = super()._answer(message)
                for metrics in reply.content.metric_records.values():
                    if "below" in metrics:
                        below = np.reshape(metrics["below"], (len(metrics["seen"]), -1))
                        every = np.c_[0 * below[:, :1], below, metrics["seen"]]
                        cells.extend(np.diff(every).ravel())
                return reply

        output = tmp_path / f"run {least}"
        run(Grid(client_app.app, nodes, chosen.model_dump()), chosen, output)
        found[least] = tensors(output, "standardiser")["cuts"]
        assert len(cells) and all(cell == 0 or cell >= least for cell in cells)
    events = pd.concat([pd.read_csv(tmp_path / f"{name}.csv") for name in "abc"])
    times = events[events.died == 1].days.to_numpy()
    ranks = [(times[:, None] <= cuts.numpy()).mean(0) for cuts in found.values()]
    assert abs(ranks[0] - ranks[1]).max() < 3 * 5 / len(times)


def common_rows(x, least):
    """Which rows stay, (N,), if each column's unusual value needs so many rows."""
    marks = [mark for column in x.numpy().T for mark in unusual(column)]
    return torch.from_numpy(in_common(np.stack(marks, 1), np.ones(len(x), dtype=bool), least))


@given(st.integers(0, 10**6), st.integers(2, 6))
def test_rows_leave_until_no_level_is_rare(seed, least):
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(40, 5, generator=rng).double()
    x[:, :4] = (x[:, :4] < torch.rand(4, generator=rng)).double()
    kept = common_rows(x, least)
    for ones in x[kept][:, :4].sum(0).tolist():
        zeros = int(kept.sum()) - ones
        assert not (0 < ones < least or 0 < zeros < least)
    full = x.clone()
    full[:, :4] = full[:, 4:].round()  # all rows or none are rare
    few = min(int(full[:, 0].sum()), 40 - int(full[:, 0].sum()))
    assert bool(common_rows(full, least).all()) == (few == 0 or few >= least)


def test_a_site_fits_without_its_rare_levels(nodes, tmp_path):
    rng, posteriors = np.random.default_rng(1), []
    for name in ("server", "a", "b", "c"):
        table = pd.read_csv(tmp_path / f"{name}.csv")
        table["stage"] = rng.choice(["I", "II", "III"], ROWS)
        if name == "a":
            table.loc[table.stage == "III", "stage"] = "I"
            table.loc[:2, "stage"] = "III"
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    words = {"task": "glm", "terms": "u v stage"}
    for number in range(2):
        for each in nodes:
            each |= {"budget": 100.0, "state-path": f"{tmp_path}/{number} of {each['name']}"}
        lines, _, errors = federate(nodes, tmp_path, **words)
        assert not errors and lines[-1]["admitted"] == 3
        posteriors.append(posterior(tmp_path / f"run {number}"))
        table = pd.read_csv(tmp_path / "a.csv")
        table[table.stage != "III"].to_csv(tmp_path / "a.csv", index=False)
    assert same(*posteriors)


def test_rows_that_terms_show_alone_are_left_out(tmp_path):
    """A product's column is 0 but at a pair of levels, powers combine to 0 but at one value."""
    table = pd.DataFrame({"sex": [*"fm"] * 60, "stage": [*"aabb"] * 30, "old": [0, 1, 1, 0] * 30})
    table["u"], table["ill"] = np.random.default_rng(0).normal(size=120), [*"nny"] * 40
    table["dose"] = [0, 1, 1, 0] * 29 + [0, 2, 1, 2]
    table.to_csv(tmp_path / "server.csv", index=False)
    table.loc[(table.sex == "m") & (table.stage == "b"), "stage"] = "a"
    table.loc[[3, 7], "stage"] = "b"
    table.to_csv(tmp_path / "site.csv", index=False)
    site = site_from({"data-path": f"{tmp_path}/site.csv"})
    pairs = ("sex stage u", 0), ("sex sex:stage", 2), ("sex:stage:u", 2), ("sex:u", 0)
    values = ("dose u", 0), ("dose dose^2", 2), ("u spline(dose,3)", 2), ("sex:dose dose^2:u", 2)
    for terms, gone in (*pairs, *values):
        words = {"task": "glm", "target": "ill", "terms": terms}
        task = task_of(resolve({**words, "dataset": f"{tmp_path}/server.csv"}))
        assert len(task.shard(site, task.signature()).y) == 120 - gone


def test_a_rare_level_bounds_the_answers_of_all_runs_and_a_rarer_one_is_left_out(nodes, tmp_path):
    """Its rows bear the budget's share of answers, whatever else the table has."""
    draw, rows = np.random.default_rng(2), 1500
    for name, rare in (("server", 90), ("a", 20), ("b", 90), ("c", 9)):
        table = pd.DataFrame({"u": draw.normal(size=rows), "out": draw.choice([*"ny"], rows)})
        table["stage"] = np.repeat(["III", "II", "I"], [rare, 500, rows - 500 - rare])
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    words, answers = {"task": "glm", "terms": "u stage", "rounds": 4}, {}
    for _ in range(3):
        federate(nodes, tmp_path, **words)
    for each in nodes:
        counter = tmp_path / f"of {each['name']}" / "sent.json"
        answers[each["name"]] = json.loads(counter.read_bytes())["answers"]
    budget = Limits().budget
    assert 4 < answers["a"] <= budget * 20 < answers["b"] <= budget * 90
    assert answers["c"] == answers["b"]  # that level is not in its answers
    task = task_of(resolve({**LAPLACE, "dataset": f"{tmp_path}/server.csv", **words}))
    kept = [len(task.shard(site_from(each), task.signature()).y) for each in nodes]
    assert kept == [rows, rows, rows - 9]
    (said,) = [
        note
        for note in task.site_notes(site_from(nodes[2]), task.signature())
        if "left out" in note
    ]
    assert said == "9 rows hold a level, or a value, of fewer than 14 rows: left out"


def test_a_knot_with_few_rows_of_a_site_beyond_it_is_answered_by_nobody(nodes, tmp_path):
    """The column of a spline is 0 up to its knot, so that a server could set it below one row."""
    table = pd.read_csv(tmp_path / "a.csv")
    table["u"] = table["u"].clip(upper=np.sort(table["u"])[-130])  # not a knot
    table.loc[:2, "u"] = [2.0, 2.1, 2.2]
    table.to_csv(tmp_path / "a.csv", index=False)
    nodes = [{**each, "budget": 9.0} for each in nodes]
    lines, _, errors = federate(nodes, tmp_path, task="glm", terms="spline(u,5) v", rounds=2)
    assert all("rows beyond them" in text for text in errors) and errors
    assert lines[-1]["admitted"] == 2


def test_sites_that_may_answer_once_answer_late_and_the_coefficients_are_the_pooled_ones(tmp_path):
    (once,) = small_last(tmp_path, 2, 0, (1,))
    assert once < 0.1
    last = lines_of(tmp_path / "run 1")
    asked = [20 - len(line.get("unasked", [])) for line in last[1:]]
    assert {*asked} == {4, 20} and asked.count(20) == 1 and asked[0] == 4
    assert last[-2]["step"] < 1e-3 and last[-1]["admitted"] == 4


def test_own_estimates_are_shown_of_sites_that_share_them_alone(nodes, tmp_path):
    words, number = {"task": "glm", "terms": "u v", "rounds": 3}, iter(range(9))

    def found(shares, **more):
        place = next(number)
        held = [{**each, "share": "estimate" * (each["name"] in shares),
                 "state-path": f"{tmp_path}/{place} {each['name']}"} for each in nodes]  # fmt: skip
        federate(held, tmp_path, **words, **more)
        return fedbary.load(tmp_path / f"run {place}").coefficients(anyway=True)

    every, one, none = found("abc"), found("a"), found("")
    for told, shown in ((every, "abc"), (one, "a"), (none, "")):
        assert (told.table.estimate == every.table.estimate).all()
        assert (told.table.tau == every.table.tau).all()
        assert {*told.table} & {*"abc"} == {*shown} and "without b" in told.table
        assert {f"{site} std" for site in shown} <= {*told.table}
        told.picture()
        for site in {*"abc"} - {*shown}:
            with pytest.raises(SettingError, match="share="):
                told.summary(site)
    later = found("abc", start_from=str(tmp_path / "run 1"))
    assert {*later.table} & {*"abc"} == {"a"}
    nodes.pop()
    two = found("a").table
    assert two["without a"].isna().all() and not two["without b"].isna().all()


def test_sites_of_usual_size_bear_the_usual_intervals_of_time(tmp_path):
    """Questions for the cuts leave them answers: else a table of all were one of the largest."""
    draw, nodes = np.random.default_rng(0), []
    for name, rows in (("server", 300), ("a", 500), ("b", 350), ("c", 250)):
        age, drug = draw.normal(60, 9, rows).round(), draw.choice([*"xyz"], rows)
        ends, leaves = draw.exponential(300, rows), draw.uniform(30, 700, rows)
        table = pd.DataFrame({"age": age, "sex": draw.choice([*"fm"], rows), "drug": drug})
        table = table.assign(days=np.ceil(np.minimum(ends, leaves)), died=(ends <= leaves) * 1)
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        nodes.append({"data-path": f"{tmp_path}/{name}.csv", "name": name})
        nodes[-1]["state-path"] = f"{tmp_path}/of {name}"
    words = {"task": "survival", "target": "days", "event": "died", "rounds": 20}
    federate(nodes[1:], tmp_path, **words)
    found = fedbary.load(tmp_path / "run 0").coefficients()
    assert found.title.startswith("PVI, 1100 rows of 3 sites")


def test_the_table_names_a_site_whose_data_did_not_fit(nodes, tmp_path):
    for _ in range(2):
        federate(nodes, tmp_path, task="glm", terms="u v", rounds=3)
        table = pd.read_csv(tmp_path / "c.csv").rename(columns={"v": "V"})
        table.to_csv(tmp_path / "c.csv", index=False)
    whole, partly = (
        fedbary.load(tmp_path / f"run {k}").coefficients(anyway=True).notes for k in (0, 1)
    )
    (said,) = [line for line in partly if line.startswith("Left out")]
    assert "node 4" in said and "missing: v" in said
    assert not any(line.startswith("Left out") for line in whole)


KEYS = "min_rows", "min_cell", "max_columns", "budget"
LOOSE = {"min_rows": 1, "min_cell": 1, "max_columns": 9.0, "budget": 99.0}


@given(st.tuples(*[st.integers(0, 9)] * 4), st.tuples(*[st.none() | st.integers(1, 9)] * 4))
def test_a_run_tightens_a_sites_limits_and_never_loosens_them(own, of_run):
    found = Limits(*own).stricter(**dict(zip(KEYS, of_run, strict=True)))
    for key, mine, other in zip(KEYS, own, of_run, strict=True):
        limit = getattr(found, key)
        if other is None or (key == "budget" and mine == 0):  # no budget is no bound
            assert limit == (mine if other is None else other)
        else:
            assert limit == (max if key.startswith("min") else min)(mine, other)


def test_limits_of_the_run_are_those_of_the_node_and_looser_ones_change_nothing(nodes, tmp_path):
    words, number = {"task": "glm", "terms": "u v", "rounds": 3}, iter(range(9))
    tight = {"min_rows": ROWS + 1}

    def told(of_node, **of_run):
        place = next(number)
        for each in nodes:
            each |= {**of_node, "state-path": f"{tmp_path}/{place} of {each['name']}"}
        lines, sent, errors = federate(nodes, tmp_path, **words, **of_run)
        return [line["step"] for line in lines[2:]], sent, errors

    usual = told({})
    assert not usual[2] and told({}, **LOOSE) == usual
    budget = (sum(usual[1].values()) / 3 - 13) / (ROWS * (COLUMNS + 1))  # two rounds of three
    by_run, by_node = told({}, budget=budget), told({"budget": budget})
    assert by_run == by_node and by_run[1]["a"] < usual[1]["a"]
    with pytest.raises(RunError, match="too few rows"):
        told({}, **tight)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_sites_that_may_answer_once_answer_however_few_rounds_there_are(nodes, tmp_path, rounds):
    words = {"task": "glm", "terms": "u v", "rounds": rounds}
    _, sent, _ = federate(nodes, tmp_path, **{**words, "rounds": 1})
    budget = (sent["a"] + 0.5) / (ROWS * (COLUMNS + 1))
    nodes[0] |= {"budget": budget, "state-path": f"{tmp_path}/new a"}
    lines, _, errors = federate(nodes, tmp_path, **words)
    assert not errors and [line["admitted"] for line in lines[1:]] == [2] * (rounds - 1) + [3]


def test_a_site_without_events_takes_part_in_cox_s_model(nodes, tmp_path):
    """None of its rows is at risk at an event: its sums are 0, and show nothing."""
    draw = np.random.default_rng(4)
    for name in ("server", "a", "b", "c"):
        table = pd.DataFrame({"u": draw.normal(size=200), "days": draw.integers(1, 400, 200)})
        table["died"] = 0 if name == "c" else draw.integers(0, 2, 200)
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    words = {"task": "survival", "family": "cox", "target": "days", "event": "died"}
    lines, _, errors = federate(nodes, tmp_path, terms="u", rounds=4, **words)
    assert not errors and lines[-1]["admitted"] == 3
