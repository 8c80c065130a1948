"""Newton's method by sums with the real apps: masks, liars, silent sites, a cut, limits."""

import json
import logging

import numpy as np
import pytest
from flwr.app import Array
from flwr.clientapp import ClientApp
from hostile_site import app_of, cut_off, run_with, run_with_a_hostile_site
from runs_of import INLINE, lines, same, tensors
from scipy.special import expit

import fedbary
from fedbary import client_app
from fedbary.errors import RunError, SettingError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve

ROWS, SITES = 800, 4


def table():
    """Rows of a logistic model, as lines of a file."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, 3))
    y = draw.random(ROWS) < expit(x @ [0.8, -0.5, 0.3])
    return [[*each, "ny"[int(ill)]] for each, ill in zip(x.tolist(), y, strict=True)]


def written(file, rows):
    """Write a file of these rows; return its path."""
    file.write_text("u,v,w,out\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return str(file)


def chosen(folder, **words):
    """Settings of a run on these rows."""
    held = {"task": "glm", "target": "out", "dataset": written(folder / "rows.csv", table())}
    return resolve({**INLINE, **held, "method": "Newton", "clients": SITES, **words})


def table_of(folder):
    """Estimates and standard errors of a run."""
    found = fedbary.load(folder).coefficients(anyway=True).table
    return found["estimate"].to_numpy(), found["std"].to_numpy()


def masked(settings, folder, seen, site=None):
    """Run with a mod that adds to each number masks which it shares with each other site."""

    def masks(message, context, call_next):
        me, trains = context.node_config["partition-id"], message.metadata.message_type == "train"
        if me == site and trains:
            raise RuntimeError("this site is away")
        reply = call_next(message, context)
        for record in reply.content.array_records.values() if trains else ():
            for key in sorted(record):
                value = record[key].numpy()
                assert value.dtype == np.float64
                for other in {*range(SITES)} - {me}:
                    pair = [min(me, other), max(me, other), len(key), len(value)]
                    noise = 1e5 * np.random.default_rng(pair).normal(size=value.shape)
                    value = value + (noise if me < other else -noise)
                record[key] = Array(value)
                seen.append(value)
        return reply

    app = ClientApp(mods=[masks, client_app.apply_mods])
    app.query()(client_app.query)
    app.query("ask")(client_app.ask)
    app.train()(client_app.train)
    run(InlineGrid(app, SITES, settings.model_dump()), settings, folder)


def test_masks_that_cancel_in_the_sum_give_the_same_table(tmp_path):
    """The server sees no site's numbers: each lies as far off as the masks."""
    run_with(chosen(tmp_path), tmp_path / "plain")
    seen = []
    masked(chosen(tmp_path, masked=True), tmp_path / "masked", seen)
    (one, std), (other, others) = (table_of(tmp_path / name) for name in ("plain", "masked"))
    assert np.abs((other - one) / std).max() < 1e-6 and np.abs(others / std - 1).max() < 1e-6
    assert min(np.abs(value).max() for value in seen) > 1e3
    assert len(lines(tmp_path / "masked")) == len(lines(tmp_path / "plain"))


def test_masked_sums_of_some_sites_are_no_sums(tmp_path):
    with pytest.raises(RunError, match="masked: 'true, and 3 of 4 sites replied'"):
        masked(chosen(tmp_path, masked=True), tmp_path / "run", [], site=1)


def test_a_lost_site_keeps_its_last_quadratic_and_rounds_end(tmp_path):
    """Near the mode its answer is as good as a new one; the table says whose answer is old."""

    def leaving(message, context):
        said = int(message.content.config_records["config"]["server-round"])
        if context.node_config["partition-id"] == 1 and said > 3:
            raise RuntimeError("this site is away")
        return client_app.train(message, context)

    run_with(chosen(tmp_path), tmp_path / "whole")
    run_with(chosen(tmp_path, rounds=20), tmp_path / "leaving", train=leaving)
    (one, std), (other, others) = (table_of(tmp_path / name) for name in ("whole", "leaving"))
    assert np.abs((other - one) / std).max() < 1e-3 and np.abs(others / std - 1).max() < 1e-2
    found = fedbary.load(tmp_path / "leaving").coefficients()
    assert found.title.startswith("Newton, 800 rows of 4 sites") and len(found.factors.sites) == 4
    assert any("partition 1; their factors are older" in note for note in found.notes)
    assert len(lines(tmp_path / "leaving")) < 10


def test_a_site_that_never_answers_is_named_and_its_rows_do_not_count(tmp_path):
    def never(message, context):
        if context.node_config["partition-id"] == 1:
            raise RuntimeError("this site is away")
        return client_app.train(message, context)

    run_with(chosen(tmp_path), tmp_path / "run", train=never)
    found = fedbary.load(tmp_path / "run").coefficients()
    assert found.title.startswith("Newton, 600 rows of 3 sites")
    assert any(note.startswith("Refused in the last round: partition 1 ") for note in found.notes)


LIES = {
    "a Hessian of 1e12": lambda key, held: held * 1e12 if "hessian" in key else held,
    "one too large by 100": lambda key, held: held * 100 if "hessian" in key else held,
    "one below 0": lambda key, held: -held if "hessian" in key else held,
    "a gradient beyond": lambda key, held: held * 0 + 3e3 if "gradient" in key else held,
}


@pytest.mark.parametrize("lie", LIES)
def test_what_no_rows_can_have_is_left_out_by_name(lie, tmp_path, caplog):
    caplog.set_level(logging.WARNING)

    def spoil(action, reply):
        for record in reply.content.array_records.values() if action == "train" else ():
            for key, array in record.items():
                record[key] = Array(LIES[lie](key, array.numpy()))

    run_with_a_hostile_site(chosen(tmp_path, rounds=6), tmp_path / "run", spoil, 1)
    assert [line["admitted"] for line in lines(tmp_path / "run")[1:]] == [SITES - 1] * 6
    refused = [text for text in caplog.messages if "reply refused" in text]
    assert refused and all("partition 1 " in text for text in refused)
    assert np.abs(table_of(tmp_path / "run")[0]).max() < 1.5


@pytest.mark.parametrize(("key", "lie"), [("gradient", 30.0), ("value", 1e6), ("value", -1e6)])
def test_a_lie_within_the_bounds_moves_no_more_than_rows_could(key, lie, tmp_path):
    """The run settles; a site that lies of its value alone moves nothing."""

    def spoil(action, reply):
        for record in reply.content.array_records.values() if action == "train" else ():
            for name, array in record.items():
                held = array.numpy()
                record[name] = Array(held * 0 + lie if key in name else held)

    run_with(chosen(tmp_path), tmp_path / "honest")
    run_with_a_hostile_site(chosen(tmp_path), tmp_path / "run", spoil, 1)
    assert lines(tmp_path / "run")[-1]["step"] < 1e-3
    (one, std), (other, _) = (table_of(tmp_path / name) for name in ("honest", "run"))
    moved = np.abs((other - one) / std).max()
    assert moved < (0.9 * ROWS / SITES) ** 0.5 and (key == "gradient" or moved < 1e-6)


@pytest.mark.parametrize("lie", [1e12, -1.0, np.nan, 0])
def test_scores_that_no_rows_have_are_left_out_and_then_the_table_is_refused(lie, tmp_path):
    def spoil(action, reply):
        if action == "ask" and "products" in (held := reply.content["metrics"]):
            held["products"] = [lie * value for value in held["products"]] if lie else [1.0]

    run_with_a_hostile_site(chosen(tmp_path, errors="robust"), tmp_path / "run", spoil, 1)
    with pytest.raises(SettingError, match="^errors: 'robust, and 3 of 4 sites told them"):
        fedbary.load(tmp_path / "run").coefficients()


def test_a_run_that_was_cut_ends_with_the_same_bits(tmp_path):
    run_with(chosen(tmp_path), tmp_path / "whole")
    cut_off(chosen(tmp_path), tmp_path / "cut", 10)
    run_with(chosen(tmp_path, resume="last"), tmp_path / "cut")
    assert same(tensors(tmp_path / "whole"), tensors(tmp_path / "cut"))
    for one, other in zip(*(table_of(tmp_path / name) for name in ("whole", "cut")), strict=True):
        assert np.array_equal(one, other)


def federated(folder, name, budget=1e9, **words):
    """Run sites of their own tables; return the run's folder, and what the first has sent."""
    rows = table()
    nodes = [
        {"name": f"{name} {k}", "data-path": written(folder / f"{k}.csv", rows[k::SITES])}
        | {"state-path": str(folder / f"{name} {k}"), "budget": 1e9 if k else budget}
        for k in range(SITES)
    ]
    settings = chosen(folder, **words)
    run(InlineGrid(client_app.app, nodes, settings.model_dump()), settings, folder / name)
    return folder / name, json.loads((folder / f"{name} 0" / "sent.json").read_bytes())["numbers"]


@pytest.mark.parametrize("intercepts", ["common", "random"])
def test_a_site_past_its_budget_keeps_its_last_quadratic(intercepts, tmp_path):
    """It may answer three times, waits until the others are near, and the table is that of all."""
    words = {"intercepts": intercepts, "rounds": 20}
    whole, sent = federated(tmp_path, "whole", **words)
    train = [line for line in lines(whole) if "clients" in line]
    p = 4 + (intercepts == "random")
    each = 1 + p + p * (p + 1) // 2 + 2
    budget = (sent - (len(train) - 3) * each + 3) / (4 * ROWS / SITES)
    partly, less = federated(tmp_path, "partly", budget, **words)
    assert sent - less == (len(train) - 3) * each
    (one, std), (other, others) = (table_of(run) for run in (whole, partly))
    most = 1e-6 if intercepts == "common" else 1e-2
    assert np.abs((other - one) / std).max() < most and np.abs(others / std - 1).max() < 30 * most
    held = lines(partly)
    assert held[-1]["unasked"] == ["partly 0"] and held[-1]["step"] < 1e-3 and len(held) < 20
    notes = fedbary.load(partly).coefficients().notes
    assert any(note.startswith("Not heard in the last round: partly 0") for note in notes)
    assert any(note.startswith("Few sites: 4 ") for note in notes) == (intercepts == "random")


def test_the_table_of_sites_is_that_of_pvi(tmp_path):
    tables = [
        fedbary.load(federated(tmp_path, method, method=method)[0]).coefficients().table
        for method in ("Newton", "PVI")
    ]
    one, other = (table.rename(columns=lambda c: c.split(" 2")[0]) for table in tables)
    for column in ("estimate", "std", "p differ", "shift by prior"):
        assert np.allclose(one[column], other[column], rtol=1e-4, atol=1e-6)
    assert {"tau", "without Newton 0"} <= {*tables[0]}


def test_what_a_site_answers_counts_in_its_budget(tmp_path):
    """For p columns a round takes 1 + p + p (p + 1)/2 numbers, and two metrics."""
    rows, sent = table(), []
    for rounds in (2, 3):
        states = [tmp_path / f"{name} {rounds}" for name in ("north", "south")]
        nodes = [
            {"name": state.name, "data-path": written(tmp_path / f"{k}.csv", rows[k::2])}
            | {"state-path": str(state)}
            for k, state in enumerate(states)
        ]
        settings = chosen(tmp_path, clients=2, rounds=rounds)
        grid = InlineGrid(client_app.app, nodes, settings.model_dump())
        run(grid, settings, tmp_path / f"run {rounds}")
        sent += [json.loads((state / "sent.json").read_bytes())["numbers"] for state in states]
    assert sent[0] == sent[1] and sent[2] == sent[3] == sent[0] + 1 + 3 + 6 + 2


@pytest.mark.parametrize(
    "words", [{"mode": "async", "speeds": "uniform", "rounds": 6}, {"participation": 0.5}]
)
def test_sites_of_any_round_tell_scores_where_a_round_is_of_some(words, tmp_path):
    run_with(chosen(tmp_path, method="PVI", errors="robust", **words), tmp_path / "run")
    told = tensors(tmp_path / "run", "told")
    assert told["scores/sites"] == SITES and told["scores/rows"] == ROWS


def two_sites(folder, first):
    """Node configs of two sites that keep a state; the first has these rows."""
    rows = {"0": first, "1": table()[1::2]}
    return [
        {"name": name, "data-path": written(folder / f"{name}.csv", held), "budget": 1e9}
        | {"state-path": str(folder / name)}
        for name, held in rows.items()
    ]


class Changing(InlineGrid):
    """A federation in which the first site has other rows once the rounds have ended."""

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if any(message.content["config"].get("question") == "scores" for message in messages):
            written(self.file, table()[20:ROWS:2])
        return super().send_and_receive(messages, timeout=timeout)


def test_a_site_whose_rows_changed_after_the_rounds_tells_no_scores(tmp_path):
    """Products of scores of other rows would be standard errors of nothing."""
    settings = chosen(tmp_path, clients=2, errors="robust")
    nodes = two_sites(tmp_path, table()[::2])
    grid = Changing(client_app.app, nodes, settings.model_dump())
    grid.file = tmp_path / "0.csv"
    run(grid, settings, tmp_path / "run")
    with pytest.raises(SettingError, match="^errors: 'robust, and 1 of 2 sites told them"):
        fedbary.load(tmp_path / "run").coefficients()


def test_new_rows_count_in_a_new_run_that_the_site_joins_late(tmp_path):
    """What it kept of its rows in an earlier run says nothing of this one."""

    def late(message, context):
        said = int(message.content.config_records["config"]["server-round"])
        if context.node_config["name"] == "0" and said < 3:
            raise RuntimeError("this site is away")
        return client_app.train(message, context)

    for name, held, train in (("old", 300, client_app.train), ("new", 400, late)):
        settings, nodes = chosen(tmp_path, clients=2), two_sites(tmp_path, table()[: 2 * held : 2])
        run(
            InlineGrid(app_of(train=train), nodes, settings.model_dump()), settings, tmp_path / name
        )
    assert [client["site"] for client in lines(tmp_path / "new")[3]["clients"]] == ["0", "1"]
    assert fedbary.load(tmp_path / "new").coefficients().title.startswith("Newton, 800 rows of 2")
