"""What a site tells the server: nothing of its data in an error, and nothing that it withholds."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from own_sites import cut
from runs_of import SHORT
from runs_of import lines as lines_of
from strategies_replies import metadata

from fedbary import client_app
from fedbary.client_app.discretion import discretion
from fedbary.data.sites import WITHHOLDABLE, site_from
from fedbary.errors import CellError, RunError, SettingError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve

QUICK = {**SHORT, "clients": 3, "rounds": 2, "holdout": 0.2}
IMAGES = {"dataset": "none", "classes": "10", "input_shape": "1x8x8"}
SECRET = "Smith-1943"
PATH = "/wards/Smith-1943/scans"
KINDS = (ValueError, KeyError, RuntimeError, OSError, UnicodeError, ZeroDivisionError)


def refused(error, config):
    """Return the text that the server gets of an error."""

    def fails(message, context):
        raise error

    message = Message(RecordDict(), metadata=metadata(1))
    with pytest.raises(Exception) as caught:
        discretion(message, SimpleNamespace(node_config=config), fails)
    assert caught.value.__cause__ is None
    return str(caught.value)


@given(st.sampled_from(KINDS), st.text(), st.text())
def test_of_an_error_of_any_library_the_kind_alone_is_told(kind, before, after):
    said = refused(kind(f"{before}{SECRET}{after}"), {"data-path": "/x.npz"})
    assert said == f"{kind.__name__}; the site's log says more"


@given(st.sampled_from([PATH, f"{PATH}/a.png", f"{PATH}/a.png: row 3", "data-path", SECRET]))
def test_of_a_bad_setting_what_is_expected_is_told(setting):
    said = refused(SettingError(setting, SECRET, "images of 1×8×8"), {"data-path": PATH})
    assert "expected images of 1×8×8" in said and SECRET not in said and PATH not in said
    said = refused(SettingError(setting, SECRET, f"no {PATH}/a.png"), {"data-path": PATH})
    assert said == "SettingError; the site's log says more"
    assert SECRET not in refused(
        CellError(f"{PATH}/x.csv: row 1", SECRET, "a number"), {"data-path": PATH}
    )


def test_a_part_of_a_named_set_is_no_secret():
    config = {"partition-id": 0, "num-partitions": 2}
    assert SECRET in refused(ValueError(SECRET), config)


@given(st.lists(st.text(st.characters(categories=["L", "N"]), min_size=4), min_size=1, max_size=3))
def test_a_site_s_name_is_by_default_no_part_of_its_path(parts):
    path = "/" + "/".join(parts)
    assert not any(part in site_from({"data-path": path}).name for part in parts if part != "site")


def heard(nodes, chosen, folder):
    """Run a federation; return the lines of its rounds, and the metrics of each reply."""
    seen = []

    class Grid(InlineGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            seen.append((message.metadata.dst_node_id, message.metadata.message_type, reply))
            return reply

    run(Grid(client_app.app, nodes, chosen.model_dump()), chosen, folder)
    return lines_of(folder), seen


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return cut(tmp_path_factory.mktemp("sites"))


def tables(folder, target):
    """Write three sites' tables and the server's."""
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c", "server"):
        x = rng.normal(size=(60, 2))
        last = np.where(x.sum(1) > 0, "ill", "well") if target == "class" else x.sum(1)
        rows = "".join(f"{u},{v},{z}\n" for (u, v), z in zip(x, last, strict=True))
        (folder / f"{name}.csv").write_text(f"u,v,out\n{rows}")
    return [folder / f"{name}.csv" for name in "abc"]


@pytest.mark.in_turn
@pytest.mark.parametrize("word", [*WITHHOLDABLE, "all"])
@pytest.mark.parametrize("task", ["classification", "tables", "regression"])
def test_a_run_goes_on_without_what_a_site_withholds(task, word, files, tmp_path):
    of_task = {
        "classification": {**IMAGES, "calibrate": "temperature", "normalise": "channels"},
        "tables": {"task": "tables", "calibrate": "temperature"},
        "regression": {"task": "regression", "holdout": 0.0},
    }[task]
    if task != "classification":
        files = tables(tmp_path, "class" if task == "tables" else "number")
        of_task |= {"dataset": str(tmp_path / "server.csv"), "target": "out"}
    nodes = [{"data-path": str(file), "name": file.stem} for file in files]
    nodes[1]["withhold"] = word
    lines, seen = heard(nodes, resolve({**QUICK, **of_task}), tmp_path / "run")
    assert [line.get("admitted") for line in lines[1:]] == [3, 3]
    told = {}
    for node, kind, reply in seen:
        if reply.has_content():
            metrics = reply.content.metric_records["metrics"]
            told.setdefault(node, {}).setdefault(kind, {}).update(metrics)
    open_site, site = told[2], told[3]
    words = set(WITHHOLDABLE) if word == "all" else {word}
    full = {kind: {*metrics} for kind, metrics in open_site.items()}
    if "seconds" in words:
        full["train"] -= {"train-seconds"}
    if "scores" in words:
        full["train"] &= {"num-examples", "train-seconds"}
        full.get("evaluate", set()).intersection_update({"num-examples"})
    counted = "label-counts" in words and task != "regression"
    if "answers" in words or (counted and task == "tables"):
        full.pop("query.ask", None)
    assert {kind: {*metrics} for kind, metrics in site.items()} == full
    assert bool(site["query"]["label-counts"]) == (task != "regression" and not counted)
    assert site["query"]["num-held-out"] == open_site["query"]["num-held-out"] or task != "tables"


def test_where_nobody_tells_a_run_has_a_posterior_and_no_scores(files, tmp_path):
    nodes = [{"data-path": str(file), "name": file.stem, "withhold": "all"} for file in files]
    chosen = resolve(
        {**QUICK, **IMAGES, "keep_best": "nll", "calibrate": "temperature", "normalise": "none"}
    )
    lines, _ = heard(nodes, chosen, tmp_path / "run")
    assert [line["accuracy"] for line in lines] == [None] * 3
    assert "held_out" not in lines[-1]
    assert (tmp_path / "run" / "posterior.safetensors").exists()
    with pytest.raises(RunError, match="no node answered"):
        heard(nodes, resolve({**QUICK, **IMAGES, "normalise": "channels"}), tmp_path / "none")


def test_a_label_count_of_a_site_is_emptied_in_the_reply_alone():
    record = MetricRecord({"label-counts": [3, 4], "num-examples": 7})
    message = Message(RecordDict(), metadata=metadata(1))
    message.metadata.__dict__["_message_type"] = "query"
    answered = Message(RecordDict({"metrics": record}), reply_to=message)
    config = {"data-path": "/x", "withhold": "label-counts"}
    reply = discretion(message, SimpleNamespace(node_config=config), lambda *_: answered)
    assert dict(reply.content["metrics"]) == {"label-counts": [], "num-examples": 7}
