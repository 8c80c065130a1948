"""Sites beside each other: what the server says of them before the first round."""

import logging
import re

import numpy as np
import pandas as pd
import pytest
from runs_of import INLINE, lines

from fedbary import client_app
from fedbary.client_app.answers import checksum_of
from fedbary.client_app.node import Job, Node
from fedbary.data.sites import site_from
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve
from fedbary.tasks import task_of


def table(seed, rows=120):
    """Patients whose outcome follows from creatinine (mg/dL) and weight (kg)."""
    rng = np.random.default_rng(seed)
    held = pd.DataFrame({"age": rng.integers(20, 90, rows), "weight": rng.normal(75, 14, rows)})
    held["creatinine"] = rng.lognormal(0, 0.35, rows).round(3)
    score = held["creatinine"] * 4 + held["weight"] / 14 + rng.normal(size=rows)
    held["out"] = np.where(score > score.median(), "ill", "well")
    return held


def told(folder, caplog, sites, server=None, **changes):
    """Run a federation of tables by their sites' names; return round 0's cautions and the log."""
    (table(0) if server is None else server).to_csv(folder / "server.csv", index=False)
    nodes = []
    for name, held in sites.items():
        held.to_csv(folder / f"{name}.csv", index=False)
        nodes.append({"data-path": str(folder / f"{name}.csv"), "name": name})
        nodes[-1]["state-path"] = str(folder / f"of {name}")
    about = {"task": "tables", "method": "LDA", "target": "out", "rounds": 1, "clients": len(sites)}
    about |= {"dataset": str(folder / "server.csv"), "evaluate_clients": 0}
    chosen = resolve({**INLINE, **about, **changes})
    caplog.set_level(logging.INFO)
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, folder / "run")
    return lines(folder / "run")[0].get("cautions", []), caplog.messages


def test_sites_of_one_population_raise_no_line(tmp_path, caplog):
    assert told(tmp_path, caplog, {n: table(s) for s, n in enumerate("abc", 1)})[0] == []


@pytest.mark.parametrize("size", [1e6, 1e100])
@pytest.mark.parametrize("others", [1, 2])
def test_a_site_whose_spread_swallows_the_others_is_named(others, size, tmp_path, caplog):
    sites = {name: table(seed) for seed, name in enumerate(("north", "south")[:others], 1)}
    odd = table(9).assign(weight=75 + size * np.resize([1.0, -1.0], 120))
    (line,), _ = told(tmp_path, caplog, {**sites, "east": odd}, method="Ridge")
    assert line.startswith("column weight may have another unit at east (mean ")
    (times,) = re.findall(r"spread (\S+) times as elsewhere", line)
    assert 0.7 < float(times) / (size / 14) < 1.4


@pytest.mark.parametrize("others", [1, 2])
def test_a_site_in_another_unit_is_named_before_training_and_before_any_advice(
    others, tmp_path, caplog
):
    sites = {name: table(seed) for seed, name in enumerate(("north", "south")[:others], 1)}
    odd = table(9).assign(creatinine=lambda held: held["creatinine"] * 88.4)
    (line,), log = told(tmp_path, caplog, {**sites, "east": odd})
    assert line.startswith("column creatinine may have another unit at east (mean ")
    assert "factor 88.4: mg/dL and µmol/L of creatinine" in line
    assert log.index(line) < next(i for i, said in enumerate(log) if said.startswith("round 0/"))
    for round_ in lines(tmp_path / "run"):
        for word in {"failing", "behind"} & round_.keys():
            assert round_[word].startswith(line)
    assert {"failing", "behind"} & lines(tmp_path / "run")[1].keys()


def test_two_sites_of_the_same_rows_are_named_in_whatever_order(tmp_path, caplog):
    south = table(1)
    sites = {"south": south, "west": south.sample(frac=1, random_state=0), "north": table(2)}
    (line,), log = told(tmp_path, caplog, sites)
    assert line.startswith("south, west hold the same data, which count 2 times")
    assert "start with one of them" in line and log.count(line) == 1


@pytest.mark.parametrize("task", ["tables", "regression"])
def test_a_site_with_the_server_s_own_rows_trains_on_its_test_rows_and_is_named(
    task, tmp_path, caplog
):
    about = {"task": task}
    if task == "regression":
        about |= {"target": "creatinine", "leave_out": "out", "method": "FedAG", "holdout": 0.0}
    sites = {"north": table(1), "home": table(0).sample(frac=1, random_state=0)}
    (line,), log = told(tmp_path, caplog, sites, **about)
    assert line.startswith("home: the same data as the server's") and log.count(line) == 1


def test_a_site_with_the_server_s_own_rows_is_not_named_where_no_row_is_tested(tmp_path, caplog):
    sites = {"north": table(1), "home": table(0)}
    found, log = told(tmp_path, caplog, sites, task="glm", method="PVI")
    assert not found and not any("test rows train" in line for line in log)


@pytest.mark.parametrize("task", ["tables", "regression"])
def test_empty_cells_that_no_feature_marks_are_said(task, tmp_path, caplog):
    odd = table(1)
    odd.loc[::7, "age"] = np.nan
    server = table(0)
    server.loc[::9, "weight"] = np.nan
    sites = {
        "north": odd,
        "south": table(2).assign(weight=lambda held: held["weight"].where(held["age"] < 80)),
    }
    about = {"missing": "indicator", "task": task}
    if task == "regression":
        about |= {"target": "creatinine", "leave_out": "out", "method": "FedAG", "holdout": 0.0}
    found = told(tmp_path, caplog, sites, server, **about)[0]
    assert [line for line in found if "empty cells" in line] == [
        "column age has empty cells at north, and none in the server's table: they are filled, and "
        "no feature marks them"
    ]


def test_a_number_that_repeats_far_away_is_said_without_the_number(tmp_path, caplog):
    """Its site's log has it, see tests/data/test_sentinels.py."""
    odd = table(1)
    odd.loc[::5, "weight"] = -987.5
    with pytest.warns(UserWarning, match="north.csv: feature 'weight': -987.5 stands in 24 of"):
        (line,), log = told(tmp_path, caplog, {"north": odd, "south": table(2)})
    assert line.startswith("column weight: a number far from all others repeats at north; ")
    assert not any("987" in said for said in log) and "missing_words=" in line


@pytest.mark.parametrize("kept", [{"withhold": "answers"}, {"epsilon": 9.0}])
def test_no_checksum_leaves_a_site_that_keeps_answers_or_adds_noise(kept, tmp_path):
    table(1).to_csv(tmp_path / "rows.csv", index=False)
    words = {**INLINE, "task": "tables", "method": "LDA", "target": "out", "rounds": 1}
    chosen = resolve({**words, "dataset": str(tmp_path / "rows.csv")})
    chosen = chosen.model_copy(update={name: kept[name] for name in kept if name == "epsilon"})
    site = site_from({"data-path": chosen.dataset, "withhold": kept.get("withhold", "")})
    held = task_of(chosen).shard(site, task_of(chosen).signature())
    for own in (site, site_from({"data-path": chosen.dataset})):
        job = Job(Node(chosen, own), task_of(chosen), None, {}, held, held, held.x, "")
        assert bool(checksum_of(job)) == (own is not site and "epsilon" not in kept)
