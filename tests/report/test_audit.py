"""Both sides' records of a run: they agree, and whatever differs is found."""

import json
import re
import stat

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Proto
from hypothesis import given
from hypothesis import strategies as st
from runs_of import INLINE, lines
from typer.testing import CliRunner

from fedbary import client_app
from fedbary.commands.cli import app
from fedbary.report.audit import audit, digest_of_folder
from fedbary.runs.record import read_record
from fedbary.server_app import run as run_server
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.grids import Recorded
from fedbary.server_app.look import hold
from fedbary.settings.config import resolve
from fedbary.strategies.wire import digest_of, size_of

WORDS = {**INLINE, "task": "tables", "target": "out", "model": "linear", "rounds": 2, "samples": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    for name in ("server", "a", "b"):
        x = rng.normal(size=(60, 2))
        rows = "".join(f"{u},{v},{'ny'[int(u + v > 0)]}\n" for u, v in x)
        (folder / f"{name}.csv").write_text(f"u,v,out\n{rows}")
    return folder


class Cut(InlineGrid):
    """A federation whose server is killed at a message, or whose answers change on their way."""

    left, spoilt = iter(int, 1), False

    def _answer(self, message):
        if next(self.left, None) is None:
            raise KeyboardInterrupt
        reply = super()._answer(message)
        if self.spoilt and message.metadata.message_type == "train":
            reply.content["metrics"]["num-examples"] += 1
        return reply


def nodes_in(files, state):
    return [
        {"data-path": f"{files}/{name}.csv", "name": name, "state-path": f"{state}/of {name}"}
        for name in "ab"
    ]


def federate(files, place, at=None, spoilt=False, **words):
    """Run two sites' federation; return the run's folder and the sites' folders of state."""
    chosen = resolve({**WORDS, "dataset": f"{files}/server.csv", "clients": 2, **words})
    grid = Cut(client_app.app, nodes_in(files, place), chosen.model_dump())
    grid.spoilt = spoilt
    if at is not None:
        grid.left = iter(range(at))
    run_server(grid, chosen, place / "run")
    return place / "run", [place / "of a", place / "of b"]


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    return federate(files, tmp_path_factory.mktemp("whole"))


def test_both_sides_agree_and_the_command_says_so(whole):
    run, states = whole
    told = CliRunner().invoke(app, ["audit", str(run), *map(str, states)])
    assert told.exit_code == 0
    answers = [e for e in read_record(run / "record.jsonl")[0] if e["event"] == "answered"]
    agreeing = re.findall(r"(\d+) messages agree, 0 differences", told.stdout)
    assert len(agreeing) == 2 and sum(map(int, agreeing)) == len(answers) > 8
    assert told.stdout.rstrip().splitlines()[-1].split()[1] == digest_of_folder(run)[1]
    for word in ("round 2: 20", "a (node 2): data ", "the server's code", "train, 2 messages"):
        assert word in told.stdout


def test_a_sites_record_is_private_and_has_nothing_of_its_rows(whole, files):
    text = "".join(file.read_text() for s in whole[1] for file in s.rglob("*.jsonl"))
    cells = re.findall(r"-?\d\.\d{6,}", (files / "a.csv").read_text())
    assert len(cells) > 50 and not any(cell in text for cell in cells)
    for state in whole[1]:
        for path in (state / "record", *state.rglob("*.jsonl")):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077


@pytest.mark.parametrize("change", ["digest", "numbers", "bytes", "asked", "gone", "more", "error"])
def test_a_record_that_differs_is_found(whole, change, tmp_path):
    run, (state, _) = whole
    (record,) = state.rglob("*.jsonl")
    told = [json.loads(line) for line in record.read_text().splitlines()]
    line = told[4]
    if change == "asked":
        line["asked"]["numbers"] += 1
    elif change == "gone":
        told.remove(line)
    elif change == "more":
        told.append({**line, "id": "another"})
    elif change == "error":
        line["error"] = line.pop("answered")["digest"]
    else:
        line["answered"][change] = "0" if change == "digest" else line["answered"][change] + 1
    (changed := tmp_path / "changed.jsonl").write_text("\n".join(map(json.dumps, told)))
    found, agrees = audit(run, [changed])
    assert not agrees and any("1 differences" in said for said in found)
    assert CliRunner().invoke(app, ["audit", str(run), str(changed)]).exit_code == 1


def test_bytes_that_change_on_their_way_are_found(files, tmp_path):
    run, states = federate(files, tmp_path, spoilt=True, rounds=1)
    found, agrees = audit(run, states)
    assert not agrees and sum("digest that it sent" in said for said in found) == 2


@pytest.mark.parametrize(
    "words", [{}, {"mode": "async", "speeds": "uniform"}], ids=["rounds", "async"]
)
def test_a_killed_run_has_a_record_which_goes_on(files, words, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        federate(files, tmp_path, at=9, rounds=3, **words)
    run = tmp_path / "run"
    before, damaged = read_record(run / "record.jsonl")
    assert not damaged and before[-1]["event"] == "stopped"
    with (run / "record.jsonl").open("a") as file:
        file.write('{"event": "ask')  # a kill amid a line
    run, states = federate(files, tmp_path, rounds=3, resume="last", **words)
    after, damaged = read_record(run / "record.jsonl")
    assert damaged == 1 and after[: len(before)] == before
    assert [e["event"] for e in after].count("start") == 2 and after[-1]["event"] == "end"
    found, agrees = audit(run, states)
    assert agrees and lines(run)[-1]["round"] == 3
    assert any("1 lines of the records cannot be read" in said for said in found)


def test_refusals_stand_in_both_records(files, tmp_path):
    chosen = resolve({**WORDS, "dataset": f"{files}/server.csv", "clients": 2, "rounds": 1})
    nodes = nodes_in(files, tmp_path)
    nodes[1] |= {"budget": 1e-9}
    run_server(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, tmp_path / "run")
    found, agrees = audit(tmp_path / "run", [tmp_path / "of a", tmp_path / "of b"])
    assert agrees and any("left out" in said and "budget" in said for said in found)


def test_a_look_is_recorded_and_counted(files, tmp_path):
    nodes = nodes_in(files, tmp_path)
    nodes[0] |= {"budget": 10.0}
    nodes[1] |= {"budget": 0.05}
    chosen = resolve({"task": "tables", "clients": 2, "min_replies": 1, "round_timeout": 1})
    record = Recorded(InlineGrid(client_app.app, nodes, chosen.model_dump()), tmp_path)
    hold(record, chosen, True)
    record.begin()
    found, agrees = audit(tmp_path, [tmp_path / "of a", tmp_path / "of b"])
    assert agrees and any("a: query.look histograms" in said for said in found)
    assert any("budget" in said for said in found)
    told = [
        line["answered"]["numbers"]
        for file in (tmp_path / "of a").rglob("*.jsonl")
        for line in read_record(file)[0]
        if "answered" in line
    ]
    counter = json.loads((tmp_path / "of a" / "sent.json").read_bytes())
    assert counter["numbers"] == sum(told)


def test_a_changed_byte_anywhere_changes_the_digest(whole):
    run = whole[0]
    count, digest = digest_of_folder(run)
    files = [file for file in run.rglob("*") if file.is_file()]
    assert count == len(files) > 5
    for file in files:
        held = file.read_bytes()
        changed = bytearray(held)
        changed[len(held) // 2] ^= 1
        file.write_bytes(changed)
        assert digest_of_folder(run)[1] != digest
        file.write_bytes(held)
    files[0].rename(moved := run / "moved")
    assert digest_of_folder(run)[1] != digest
    moved.rename(files[0])
    assert digest_of_folder(run) == (count, digest)


VALUES = st.floats() | st.integers(-(2**63), 2**63 - 1) | st.lists(st.floats(), max_size=3)


@given(st.dictionaries(st.text(), VALUES), st.binary(max_size=9), st.integers(0, 4))
def test_a_digest_is_the_same_on_both_sides_of_the_wire(metrics, word, size):
    array = Array(np.arange(size, dtype=np.float32))
    records = {"m": MetricRecord(metrics), "c": ConfigRecord({"w": word, "b": True, "l": ["é"]})}
    content = RecordDict({**records, "arrays": ArrayRecord({"x/y": array})})
    wire = recorddict_to_proto(content).SerializeToString()
    arrived = recorddict_from_proto(Proto.FromString(wire))
    assert digest_of(arrived) == digest_of(content)
    assert size_of(arrived) == size_of(content)
    content["c"]["b"] = False
    assert digest_of(arrived) != digest_of(content)
