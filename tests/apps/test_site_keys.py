"""Names and partitions belong to keys, whoever claims them, and over a resume."""

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hostile_site import app_of
from hypothesis import example, given
from hypothesis import strategies as st
from nodes import KeyedGrid, settings
from runs_of import lines

from fedbary import client_app
from fedbary.errors import SettingError
from fedbary.runs.sites import read_site_keys, write_site_keys
from fedbary.server_app import run
from fedbary.server_app.engine.inline import run_inline
from fedbary.server_app.roster.roster import Roster
from fedbary.tasks._images import layout_of


@pytest.fixture(autouse=True, scope="module")
def impatient():
    """Rosters look for nodes often, so that the wait for those that never come is short."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedbary.server_app.roster.roster.POLL_SECONDS", 0.005)
        yield


def keyed(registered, partitions, **changes):
    chosen = settings(**{"clients": 2, "round_timeout": 0.5, **changes})
    nodes = [{"partition-id": partition, "num-partitions": 2} for partition in partitions]
    grid = KeyedGrid(client_app.app, chosen, nodes, registered)
    return grid, Roster(grid, chosen, layout_of(chosen))


def test_a_name_belongs_to_the_key_registered_under_it_even_if_another_claims_it_first(caplog):
    grid, roster = keyed(["stranger", "partition 0"], [0, 0])
    usurper, owner = grid.online
    grid.online = [usurper]
    roster.gather()
    assert roster.participants(1) == [usurper]
    grid.online = [usurper, owner]
    for server_round in (2, 3, 4):
        roster.participants(server_round)
    assert roster.participants(5) == [owner]
    assert f"claims to be partition 0, which is partition 0 (node {owner})" in caplog.text


def test_a_node_that_claims_another_s_partition_does_not_end_the_wait_for_a_site():
    """Two sites are waited for. Beside the first one comes a stranger that claims its partition."""
    grid, roster = keyed(["partition 0", "stranger", "partition 1"], [0, 0, 1], round_timeout=60)
    first, stranger, late = grid.online
    asked = []

    def some():
        asked.append(None)
        return [first, stranger, *([late] if len(asked) > 9 else [])]

    grid.get_nodes = lambda: [grid.infos[node] for node in some()]
    roster.gather()
    assert [member.node_id for member in roster.members] == [first, late]


def test_a_registered_site_keeps_its_partition_while_it_is_away(caplog):
    grid, roster = keyed(["north", "south", "west"], [0, 1, 1])
    north, south, west = grid.online
    grid.online = [north, south]
    roster.gather()
    grid.online = [north, west]
    for server_round in (1, 2, 3):
        assert roster.participants(server_round) == [north]
    assert f"west (node {west}) is left out: it claims to be partition 1" in caplog.text
    assert f"which is partition 1 (node {south}, registered as south)" in caplog.text
    grid.online = [north, south, west]
    roster.participants(4)
    assert roster.participants(5) == [north, south]


def test_two_that_claim_one_partition_are_both_named_in_the_log(caplog):
    grid, roster = keyed(["", ""], [0, 0])
    roster.gather()
    first, second = grid.online
    assert [member.node_id for member in roster.members] == [first]
    said = f"node {second} is left out: it claims to be partition 0, which is partition 0"
    assert f"{said} (node {first})" in caplog.text


@given(
    registered=st.lists(
        st.sampled_from(["", "", "partition 0", "partition 1", "x"]), min_size=4, max_size=4
    ),
    steps=st.lists(
        st.tuples(st.sets(st.integers(0, 3)), st.integers(0, 3), st.integers(0, 1)),
        min_size=1,
        max_size=6,
    ),
)
def test_however_nodes_come_go_and_change_their_claims_no_two_hold_one(registered, steps):
    grid, roster = keyed(registered, [0, 1, 0, 1], round_timeout=0.01)
    everyone = list(grid.online)
    for there, changing, claim in steps:
        grid._contexts[everyone[changing]].node_config["partition-id"] = claim
        grid.online = [everyone[k] for k in sorted(there)]
        roster.participants(1)
        roster.participants(1)
        members = roster.members
        assert len({member.partition for member in members}) == len(members)
        assert len({member.name for member in members}) == len(members)


def after_a_resume(roster, chosen, grid):
    """A roster that knows of the first what a run's folder keeps."""
    with tempfile.TemporaryDirectory() as folder:
        write_site_keys(Path(folder), roster.keys)
        return Roster(grid, chosen, layout_of(chosen), read_site_keys(Path(folder)))


NAMES = st.sampled_from(["", "partition 0", "partition 1", "x"])
THERE = st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=4)


@given(
    registered=st.lists(NAMES, min_size=4, max_size=4),
    parts=st.lists(st.integers(0, 1), min_size=4, max_size=4),
    anew=st.permutations(range(4)),
    before=THERE,
    after=THERE,
)
@example(["x", "", "", ""], [0, 0, 1, 1], (1, 0, 2, 3), [{0}], [{1}])
@example(["partition 0", "x", "", ""], [0, 0, 1, 1], (1, 0, 2, 3), [{0}], [{1}])
def test_what_was_a_key_s_before_a_resume_stays_its_own(registered, parts, anew, before, after):
    """Nodes have other ids then, and come in another order."""
    grid, roster = keyed(registered, parts, round_timeout=0.01)
    come_and_go(roster, grid, before, range(4))
    kept = roster.keys
    nodes = [{"partition-id": parts[k], "num-partitions": 2} for k in anew]
    keys = [grid.infos[list(grid.infos)[k]].public_key for k in anew]
    chosen = settings(clients=2, round_timeout=0.01)
    again = KeyedGrid(client_app.app, chosen, nodes, [registered[k] for k in anew], keys)
    resumed = after_a_resume(roster, chosen, again)
    assert resumed.keys == kept
    claimed = {sha256(key): f"partition {parts[k]}" for key, k in zip(keys, anew, strict=True)}
    strict = {
        name: key
        for name, key in kept.items()
        if registered.count(name) == (key.registered == name)
        or claimed[key.sha256] == key.registered == name
    }
    place = [anew.index(k) for k in range(4)]
    for there in [*after, {0, 1, 2, 3}]:
        come_and_go(resumed, again, [there], place)
        holders = {m.name: sha256(again.infos[m.node_id].public_key) for m in resumed.members}
        assert all(holders.get(name, key.sha256) == key.sha256 for name, key in strict.items())
    assert all(holders[name] == k.sha256 for name, k in strict.items() if claimed[k.sha256] == name)


def sha256(key):
    return hashlib.sha256(key).hexdigest()


def come_and_go(roster, grid, steps, place):
    """Let nodes be there or not; `place` says where in the grid each stands."""
    for there in steps:
        grid.online = [list(grid.infos)[k] for k in sorted(place[k] for k in there)]
        for server_round in (1, 2, 3):
            roster.participants(server_round)


QUICK = {
    "clients": 2,
    "rounds": 3,
    "local_epochs": 1,
    "samples": 3,
    "round_timeout": 1,
    "normalise": "none",
}


def federation(chosen, nodes, away=()):
    """A grid of (registered name, key, partition), of which some are away."""
    configs = [{"partition-id": part, "num-partitions": 2} for _, _, part in nodes]
    names, keys = [name for name, _, _ in nodes], [key for _, key, _ in nodes]
    grid = KeyedGrid(client_app.app, chosen, configs, names, keys)
    grid.online = [node for node, key in zip(grid.online, keys, strict=True) if key not in away]
    return grid


NORTH, SOUTH = ("north", b"n", 0), ("south", b"s", 1)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The folder of a run of two sites whose server was killed in the second round."""
    folder, chosen = tmp_path_factory.mktemp("keys") / "run", settings(**QUICK)
    grid = federation(chosen, [NORTH, SOUTH])

    def killed(message, context):
        if message.content["config"]["server-round"] == 2:
            raise KeyboardInterrupt
        return client_app.train(message, context)

    grid._client_app = app_of(train=killed)
    with pytest.raises(KeyboardInterrupt):
        run(grid, chosen, folder)
    return folder


@pytest.fixture
def cut(begun, tmp_path):
    return shutil.copytree(begun, tmp_path / "run")


def trained(folder):
    return [[client["site"] for client in line["clients"]] for line in lines(folder)[1:]]


@pytest.mark.parametrize("name", ["thief", ""])
def test_after_a_resume_another_key_is_refused_and_said_and_the_right_one_trains(name, cut, caplog):
    thief = (name, b"t", 0)
    chosen = settings(**QUICK, resume="last")
    run(federation(chosen, [thief, SOUTH, NORTH], away=[b"n"]), chosen, cut)
    assert trained(cut) == [["partition 0", "partition 1"], ["partition 1"], ["partition 1"]]
    said = "it claims to be partition 0, which is tied to the key that was registered as north"
    assert said in caplog.text and "site-keys.json" in caplog.text


def test_after_a_resume_the_right_keys_train_though_another_came_first(cut, caplog):
    chosen = settings(**QUICK, resume="last")
    run(federation(chosen, [("thief", b"t", 0), SOUTH, NORTH]), chosen, cut)
    assert trained(cut) == [["partition 0", "partition 1"]] * 3
    assert "thief" in caplog.text


def test_a_key_may_be_registered_under_another_name_meanwhile(cut):
    chosen = settings(**QUICK, resume="last")
    run(federation(chosen, [("nord", b"n", 0), SOUTH]), chosen, cut)
    assert trained(cut) == [["partition 0", "partition 1"]] * 3


def test_a_line_taken_out_of_the_file_frees_the_name(cut):
    file = cut / "site-keys.json"
    held = json.loads(file.read_text()).items()
    file.write_text(json.dumps({k: v for k, v in held if v["registered"] != "north"}))
    chosen = settings(**QUICK, resume="last")
    run(federation(chosen, [("thief", b"t", 0), SOUTH]), chosen, cut)
    assert trained(cut) == [["partition 0", "partition 1"]] * 3


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"a": 1}', b'{"a": {"registered": "a"}}', b"\xff", b"null",
                b'{"a": {"registered": "a", "sha256": 1}}']
)  # fmt: skip
def test_a_damaged_file_is_one_line(content, cut):
    (cut / "site-keys.json").write_bytes(content)
    with pytest.raises(SettingError, match="resume: .*site-keys.json.*names are then free"):
        run_inline(settings(**QUICK, resume="last"), cut)


def test_digests_are_written_and_of_nodes_without_registered_keys_nothing(cut, tmp_path):
    digests = {part["sha256"] for part in json.loads((cut / "site-keys.json").read_text()).values()}
    assert len(digests) == 2 and all(len(digest) == 64 for digest in digests)
    run_inline(settings(**QUICK | {"rounds": 1}), tmp_path / "simulated")
    assert not (tmp_path / "simulated" / "site-keys.json").exists()
