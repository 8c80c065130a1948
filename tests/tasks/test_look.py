"""A look at the sites' tables: what is found, what is true, and what never leaves a site."""

import importlib
import struct
import tomllib

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.common.serde import message_to_proto
from flwr.serverapp import ServerApp
from hypothesis import given, settings
from hypothesis import strategies as st
from looks import look_at

from fedbary.client_app import app
from fedbary.data.beside import UNITS
from fedbary.data.deal import client_rows
from fedbary.data.frame import column, frame_of
from fedbary.errors import RunError
from fedbary.launching.app import LOOKS, write_app
from fedbary.launching.deploy import site_configs
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.look import hold
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from fedbary.tasks._look import rules
from fedbary.tasks._look.dialogue import read_columns, read_histograms
from fedbary.tasks._look.findings import findings
from fedbary.trained.look_page import lines, rows_of, write

few = settings(max_examples=30, deadline=None)


def table(rows, seed=0, **columns):
    rng = np.random.default_rng(seed)
    held = {
        "age": rng.normal(60, 12, rows).round(),
        "glucose": rng.lognormal(np.log(5.5), 0.25, rows),
        "stage": rng.choice(["I", "II", "III"], rows),
    }
    return pd.DataFrame({**held, **columns})


def told(held, what):
    return [line for line in findings(held) if what in line]


@given(st.lists(st.integers(12, 300), min_size=1, max_size=5), st.integers(0, 99))
@few
def test_counts_means_and_deviations_are_those_of_all_rows_in_one_place(counts, seed):
    sites = {f"s{k}": table(n, seed + k) for k, n in enumerate(counts)}
    held, pooled = look_at(sites), pd.concat(sites.values())
    assert held.rows == dict(zip(sites, counts, strict=True))
    together = {row["column"]: row for row in rows_of(held) if row["site"] == "together"}
    for name in ("age", "glucose"):
        row = together[name]
        assert row["rows"] == len(pooled) and row["missing"] == 0
        assert row["mean"] == pytest.approx(pooled[name].mean())
        assert row["sd"] == pytest.approx(pooled[name].std())


def test_quantiles_of_thirty_to_five_hundred_rows_a_site_are_near_those_of_all_rows():
    rng, off = np.random.default_rng(1), []
    for _ in range(30):
        sites = {
            f"s{k}": pd.DataFrame({"glucose": rng.lognormal(np.log(5.5), 0.25, n)})
            for k, n in enumerate(rng.integers(30, 500, rng.integers(3, 9)))
        }
        at = (0.05, 0.25, 0.5, 0.75, 0.95)
        true = pd.concat(sites.values())["glucose"].quantile(at).to_numpy()
        off.append(abs(look_at(sites).quantiles("glucose", at) / true - 1))
    assert np.mean(off) < 0.005 and np.quantile(off, 0.95) < 0.02


@given(st.integers(0, 999), st.sampled_from(["normal", "lognormal", "poisson", "step"]))
@few
def test_cells_hold_ten_rows_are_at_most_a_tenth_of_them_and_lie_on_the_grid(seed, kind):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 400))
    values = {
        "normal": rng.normal(37, 0.6, rows),
        "lognormal": rng.lognormal(1, 1.1, rows),
        "poisson": rng.poisson(3, rows).astype(float),
        "step": rng.choice([0.0, 1.0], rows),
    }[kind]
    edges = rules.grid(values.mean(), values.std() or 1.0)
    places, counts = rules.histogram(values, edges)
    assert len(counts) <= rows // 10 and min(counts, default=10) >= 10
    assert sum(counts) == (rows if places else 0)
    inner = np.r_[-np.inf, edges[places], np.inf]
    assert counts == (np.histogram(values, inner)[0].tolist() if places else [])


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 30), max_size=8))
@few
def test_no_level_and_no_rest_of_levels_has_fewer_than_five_rows_if_all_have_five(levels):
    kept = rules.common(levels)
    assert sum(kept.values()) == sum(levels.values())
    assert all(rows == levels[name] for name, rows in kept.items() if name != rules.RARE)
    if sum(levels.values()) >= 5:
        assert min(kept.values()) >= 5


@given(st.integers(0, 9), st.integers(0, 99))
@few
def test_missing_cells_are_counted_from_five_on_and_fewer_cannot_be_counted(absent, seed):
    values = np.random.default_rng(seed).normal(size=40)
    values[:absent] = np.nan
    held = rules.told_of("x", column(pd.Series(values)))
    seen = np.isfinite(held.numbers).sum()
    if 0 < absent < 5:
        assert (held.missing, seen) == (rules.SOME, 35)
    else:
        assert (held.missing, seen) == (absent, 40 - absent)


@pytest.mark.parametrize(("factor", "words"), UNITS)
def test_a_site_in_another_unit_is_named_with_the_factor(factor, words):
    rng = np.random.default_rng(0)
    sites = {f"s{k}": pd.DataFrame({"x": rng.normal(70, 10, 200)}) for k in range(4)}
    sites["s2"] = factor * sites["s2"]
    (line,) = told(look_at(sites), "another unit")
    assert "at s2" in line and words in line


def test_each_fault_has_a_line_with_what_to_do_and_a_sound_table_has_none():
    sound = {"north": table(200, 1), "south": table(150, 2)}
    assert findings(look_at(sound)) == []
    rng = np.random.default_rng(0)
    sites = {name: held.copy() for name, held in sound.items()}
    for held in sites.values():
        held["name"] = [f"note {k} {rng.integers(1e9)}" for k in range(len(held))]
        held["born"] = pd.date_range("1950-01-01", periods=len(held)).strftime("%Y-%m-%d")
        held["months"] = 12 * held["age"] + 3
        held["weight"] = [f"{w:.1f}".replace(".", ",") for w in rng.normal(70, 9, len(held))]
        held["country"], held["year"] = "NO", 2020.0
        held["height"] = rng.normal(170, 9, len(held))
    north, south = sites["north"], sites["south"]
    north.loc[:9, "age"] = -999
    north["months"] = 12 * north["age"] + 3
    south["centre"] = 1.0
    south.loc[south["stage"] == "III", "stage"] = "II"
    north.loc[:100, "glucose"] = np.nan
    south.loc[0, "height"] = 1e9
    lines = findings(look_at(sites))
    for what, todo in {
        "columns age, months: a number far from all others repeats at north": "missing_words=",
        "column name holds names or notes": "leave_out=",
        "column born holds dates": "days since",
        "column weight holds numbers as text": "with a point",
        "column country holds one level": "no effect",
        "column year is constant at all sites": "no effect",
        "column months follows from age": "leave_out=",
        "column centre is not at north": "leave_out=",
        "column stage has no row of level III at south": "",
        "column glucose has many missing cells at north": "missing=",
        "column height at south holds a value so far": "look at it there",
    }.items():
        assert any(what in line and todo in line for line in lines), what
    twice = look_at({"a": table(80), "b": table(80), "c": table(80, 5)})
    assert findings(twice) == [
        "a and b have the same sums in all columns, so they hold the same rows: start without one "
        "of them"
    ]


class Heard(InlineGrid):
    """A federation that keeps every reply, by its site's place."""

    def __init__(self, *args):
        super().__init__(*args)
        self.replies = []

    def _answer(self, message):
        reply = super()._answer(message)
        self.replies.append((message.metadata.dst_node_id - 2, reply))
        return reply


def heard(folder, sites, **changes):
    """Return the look at tables through the apps, and the replies."""
    for name, held in sites.items():
        held.to_csv(folder / f"{name}.csv", index=False)
    given = {"task": "tables", "clients": len(sites), "id": "patient", "round_timeout": 5.0}
    chosen = resolve({**given, **changes})
    configs = site_configs([folder / f"{name}.csv" for name in sites])
    grid = Heard(app, configs, chosen.model_dump())
    return hold(grid, chosen, True), grid.replies


def parts_of(reply):
    """Return all numbers and all texts in a reply, names of entries too."""
    numbers, texts = [], []
    for record in reply.content.values():
        for name, value in record.items():
            for each in [name, *(value if isinstance(value, list) else [value])]:
                if not isinstance(each, bytes):
                    (texts if isinstance(each, str) else numbers).append(each)
    return np.array(numbers, float), texts


def wild(rows, rng):
    """A table with rare levels, extreme values, few missing cells, names, notes and dates."""
    few = np.arange(rows) < rng.integers(0, 5)
    wards = ["WARD A", "WARD B", *(f"RARE{k:02}" for k in range(40))]
    return pd.DataFrame(
        {
            "patient": [f"PID{k}" for k in range(rows)],
            "lab": rng.normal(100, 15, rows),
            "skewed": rng.lognormal(1, 2, rows),
            "wild": rng.standard_cauchy(rows) * 1e3,
            "gaps": np.where(few, np.nan, rng.normal(size=rows)),
            "flag": few.astype(float),
            "ward": rng.choice(wards, rows, p=[0.5, 0.3, *[0.005] * 40]),
            "note": [f"NOTE{rng.integers(1e9)}" for _ in range(rows)],
            "born": pd.date_range("1950-01-01", periods=rows).strftime("%Y-%m-%d"),
        }
    )


@pytest.mark.parametrize("seed", range(5))
def test_all_bytes_of_a_look_hold_no_extreme_no_few_rows_and_no_rare_name(seed, tmp_path):
    rng = np.random.default_rng(seed)
    rows = {"east": 6, "north": 11, "south": 87, "west": 300}
    sites = {name: wild(n, rng) for name, n in rows.items()}
    held, replies = heard(tmp_path, sites)
    assert set(held.rows) == set(sites) and len(replies) == 6 * len(sites)
    for place, reply in replies:
        site = sites[[*sites][place]]
        numbers, texts = parts_of(reply)
        packed = message_to_proto(reply).SerializeToString()
        for name in ("lab", "skewed", "wild", "gaps"):
            for extreme in (site[name].min(), site[name].max()):
                assert not (abs(numbers - extreme) <= 1e-5 * abs(extreme)).any()
                assert struct.pack("<d", extreme) not in packed
                assert struct.pack("<f", extreme) not in packed
        common = site["ward"].value_counts()
        secret = [*common[common < 5].index, "PID", "NOTE", "1950-"]
        assert not [word for word in secret if any(word in text for text in texts)]
        assert not [word for word in secret if word.encode() in packed]
        for name in ("level-rows", "cell-rows", "seen", "count", "missing"):
            counts = reply.content["metrics"].get(name, [])
            counts = counts if isinstance(counts, list) else [counts]
            assert not [n for n in counts if 0 < n < 5], name
    for name, site in sites.items():
        absent, told = int(site["gaps"].isna().sum()), held.columns[name]
        assert told["gaps"].missing in (rules.SOME if 0 < absent < 5 else absent, len(site))
        assert told["flag"].kept or absent == 0 or len(site) < 10
        assert "patient" not in told


def test_hostile_answers_are_no_look_and_leave_their_site_out():
    sound = {"count": 50, "edges": [1], "places": [3], "cell-rows": [20, 30]}
    edges = [rules.grid(0.0, 1.0)]
    assert read_histograms(sound, 50, edges)[0][1].tolist() == [20, 30]
    for odd in (
        {"cell-rows": [20, 31]}, {"cell-rows": [50]}, {"cell-rows": [48, 2]}, {"places": [10**6]},
        {"places": [-1]}, {"edges": [-1]}, {"edges": [2]}, {"edges": [1, 1]},
        {"cell-rows": [10] * 3},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            read_histograms({**sound, **odd}, 50, edges)
    told = rules.columns_told({"x": rules.Told("levels", 0, {"a": 20, "b": 30})})
    assert read_columns(told, 50)[1]["x"].levels == {"a": 20, "b": 30}
    for odd in (
        {"kinds": ["<b>"]}, {"kept": ["?"]}, {"missing": [51]}, {"missing": [-2]}, {"names": []},
        {"levels": [3]}, {"level-rows": [20, 51]}, {"level-rows": [1, 30]}, {"levels": [-2]},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            read_columns({**told, **odd}, 50)


@pytest.mark.parametrize("std", [0.0, 1e-9, 0.2])
def test_a_server_that_asks_for_a_finer_grid_gets_no_histogram(std):
    values = np.random.default_rng(0).normal(size=(500, 1))
    assert rules.histograms(values, [0.0], [std]) == {"edges": [0], "places": [], "cell-rows": []}
    assert rules.histograms(values, [0.0], [1.0])["edges"][0] > 20
    with pytest.raises(ValueError, match="names a column twice"):
        asked = {"names": ["x", "x"], "mean": [0.0, 0.01], "std": [1.0, 1.0]}
        rules.answer("histograms", {"x": rules.Told("numbers", numbers=values[:, 0])}, asked)


def test_a_site_that_withholds_its_answers_takes_no_part(tmp_path):
    names = [tmp_path / f"{name}.csv" for name in ("a", "b")]
    for name in names:
        table(50).to_csv(name, index=False)
    chosen = resolve({"task": "tables", "clients": 2, "round_timeout": 5.0, "min_replies": 1})
    configs = site_configs(names)
    configs[1]["withhold"] = "answers"
    assert [*hold(InlineGrid(app, configs, chosen.model_dump()), chosen, True).rows] == ["a"]
    configs[0]["withhold"] = "all"
    with pytest.raises(RunError, match="withholds its answers"):
        hold(InlineGrid(app, configs, chosen.model_dump()), chosen, True)


def test_a_data_set_is_dealt_as_a_run_deals_it():
    chosen = resolve({"task": "tables", "clients": 3, "round_timeout": 5.0})
    held = hold(InlineGrid(app, 3, chosen.model_dump()), chosen, True)
    task = task_of(chosen)
    parts = client_rows(task.held, task.deal, 3)
    assert [*held.rows.values()] == [len(part) for part in parts]
    mean = task.held.x[np.concatenate(parts)].mean(0)
    names = [*task.signature().features]
    found = [held.total.mean[held.names.index(name)] for name in names]
    torch.testing.assert_close(torch.stack(found), mean)


@pytest.mark.parametrize("columns", [1, 12])
def test_a_look_is_written_whole_and_no_line_is_longer_than_the_screen(columns, tmp_path):
    sites = {}
    for k, name in enumerate(("a site with a long name", "b", "c")):
        more = {f"column {c} of the ward": np.arange(60.0) % (7 + c) for c in range(columns)}
        sites[name] = table(60, k, **more)
    held = look_at(sites)
    write(held, tmp_path / "look")
    assert max(map(len, lines(held)[len(findings(held)) :])) <= 100
    written = pd.read_csv(tmp_path / "look" / "look.csv")
    assert len(written) == 4 * (3 + columns)
    page = (tmp_path / "look" / "look.html").read_text(encoding="utf-8")
    assert page.index("Findings") < page.index("data:image/png") < page.index("<table>")
    assert (tmp_path / "look" / "look.md").is_file()
    write(held, tmp_path / "look", force=True)


@pytest.mark.parametrize("rows", [1, 2, 4, 6])
def test_the_site_itself_is_told_of_far_cells_however_few_they_are(rows):
    held = table(100)
    held.loc[50 : 49 + rows, "age"] = -999
    frame = frame_of("x", held, "")
    (line,) = rules.own_lines(frame, held)
    assert f"column age: -999 lies far from all others, in {rows} rows, the first is 51" in line


def test_the_app_of_looks_names_its_server_app(tmp_path):
    project = tomllib.loads((write_app(tmp_path / "app", LOOKS) / "pyproject.toml").read_text())
    module, _, name = project["tool"]["flwr"]["app"]["components"]["serverapp"].partition(":")
    assert isinstance(getattr(importlib.import_module(module), name), ServerApp)


@pytest.mark.parametrize("values", [(0, 1), (1, 2), (-3, 40), (0, 5, 10), (1, 2, 3, 4, 5)])
def test_a_column_of_few_values_has_no_quantiles(values):
    """Its open cells have no tails: 95 % of three doses up to 10 were below 19."""
    rng = np.random.default_rng(0)
    sizes = (300, 260, 30)
    sites = {f"s{n}": pd.DataFrame({"x": rng.choice(values, n)}) for n in sizes}
    assert np.isnan(look_at(sites).quantiles("x", [0.1, 0.5])).all()
