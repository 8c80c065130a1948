"""Who takes part: nodes that come late, fall silent, come back, or claim what is not so."""

import importlib
import logging
import sys

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from hostile_site import app_of
from hypothesis import given
from hypothesis import strategies as st
from nodes import Grid, roster_of, settings

from fedbary import client_app
from fedbary.errors import RunError, SettingError
from fedbary.server_app.roster import roster as of_roster
from fedbary.server_app.roster.member import Claims, member_from
from fedbary.server_app.roster.roster import SLOW_START, Questions, Roster
from fedbary.tasks import task_of
from fedbary.tasks._images import layout_of


def test_round_one_waits_for_nodes_that_register_late():
    chosen = settings(clients=5)
    grid, roster = roster_of(chosen)
    everyone, asked = grid.online, []

    def some():
        asked.append(None)
        return everyone[: min(len(asked), 5)]

    grid.get_node_ids = some
    roster.gather()
    assert [member.partition for member in roster.members] == [0, 1, 2, 3, 4]
    assert roster.participants(1) == everyone
    sizes = [member.num_examples for member in roster.members]
    assert sizes == sorted(sizes, reverse=True)


def roster_with(partitions, late, **changes):
    """Gather nodes that say of how many partitions they are one, some of which come late."""
    chosen = settings(**changes)
    nodes = [{"partition-id": k, "num-partitions": said} for k, said in enumerate(partitions)]
    grid = Grid(client_app.app, chosen, nodes)
    everyone, asked = grid.online, []

    def some():
        asked.append(None)
        return everyone[: len(everyone) - late * (len(asked) < 5)]

    grid.get_node_ids = some
    roster = Roster(grid, chosen, layout_of(chosen))
    roster.gather()
    return roster


@pytest.mark.parametrize("claimed", [1, 2, 100])
def test_one_node_that_says_another_number_of_nodes_neither_ends_nor_holds_up_the_wait(claimed):
    """However few or many it says: as many come as the setting says."""
    roster = roster_with([claimed, 3, 3], late=2, clients=3, min_examples=1, round_timeout=600)
    assert len(roster.members) == 3


@pytest.mark.parametrize(("there", "clients"), [(2, 10), (4, 10), (4, 3), (3, 1)])
def test_a_federation_of_another_size_than_the_setting_says_is_waited_for(there, clients):
    roster = roster_with([there] * there, late=1, clients=clients, round_timeout=600)
    assert len(roster.members) == there


def test_two_nodes_of_one_name_are_said_soon_and_by_name(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(of_roster, "SOON_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    (tmp_path / "a.csv").write_text("u,out\n" + "".join(f"{k},{'ny'[k % 2]}\n" for k in range(20)))
    words = {"task": "tables", "dataset": f"{tmp_path}/a.csv", "target": "out", "clients": 2}
    chosen = settings(**words, round_timeout=1)
    node = {"data-path": f"{tmp_path}/a.csv", "name": "north"}
    grid = Grid(client_app.app, chosen, [node, node])
    roster = Roster(grid, chosen, task_of(chosen).signature())
    roster.gather()
    said = (
        "1 of 2 nodes can take part (take part: north; left out, for the name is another's: north"
    )
    assert any(f"{said} (node 3); not connected: 1)" in line for line in caplog.messages)
    assert any("claims to be north, which is north (node 2)" in line for line in caplog.messages)


def test_who_is_silent_is_named_though_it_has_no_name(caplog):
    _, roster = roster_of(settings())
    roster.note_silent([77])
    assert "node 77 did not answer" in caplog.text and "None" not in caplog.text


def test_waiting_ends_and_with_enough_nodes_the_run_goes_on():
    grid, roster = roster_of(settings(round_timeout=0.5))
    grid.online = grid.online[:2]
    roster.gather()
    assert [member.partition for member in roster.members] == [0, 1]
    grid, roster = roster_of(settings(round_timeout=0.5, min_replies=3))
    grid.online = grid.online[:2]
    with pytest.raises(RunError, match=r"2 of 3 .*; not connected: 1\) within 0.5 s"):
        roster.gather()


def test_if_no_node_can_take_part_the_reason_is_given_without_waiting_for_the_timeout(monkeypatch):
    monkeypatch.setattr("fedbary.server_app.roster.roster.GRACE_SECONDS", 0.2)

    def query(message, context):
        raise SettingError("data_dir", "/none", "a folder that exists")

    _, roster = roster_of(settings(round_timeout=3600), app_of(query=query))
    with pytest.raises(RunError, match="no node can take part: .*data_dir"):
        roster.gather()


def test_sites_without_news_do_not_end_the_wait_for_one_that_has_some(monkeypatch):
    """The last site comes long after the others have said that they have nothing new."""
    monkeypatch.setattr("fedbary.server_app.roster.roster.GRACE_SECONDS", 0.0)
    chosen = settings(round_timeout=600)
    grid, without = Grid(client_app.app, chosen), {"partition 0", "partition 1"}
    why = "{} has nothing new".format

    def left_out(member):
        return why(member.name) if member.name in without else ""

    everyone, asked = grid.online, []

    def some():
        asked.append(None)
        return everyone if len(asked) > 9 else everyone[:2]

    grid.get_node_ids = some
    roster = Roster(grid, chosen, layout_of(chosen), left_out=left_out)
    roster.gather()
    assert [member.partition for member in roster.members] == [2]
    monkeypatch.setattr(grid, "get_node_ids", lambda: everyone[:2])
    late = Roster(grid, settings(round_timeout=0.5), layout_of(chosen), left_out=left_out)
    with pytest.raises(RunError, match=r"partition 0 has nothing new; 0 of 3 .*not connected: 1"):
        late.gather()


def test_a_node_whose_data_do_not_fit_is_left_out_until_they_do():
    broken = {2}

    def query(message, context):
        if context.node_config["partition-id"] in broken:
            raise SettingError("data_dir", "/none", "a folder that exists")
        return client_app.query(message, context)

    grid, roster = roster_of(settings(), app_of(query=query))
    roster.gather()
    assert [member.partition for member in roster.members] == [0, 1]
    assert len(roster.participants(1)) == 2
    broken.clear()
    assert len(roster.participants(2)) == 2
    assert roster.participants(3) == grid.online


def test_who_is_away_or_silent_is_passed_over_and_trains_again_once_back():
    grid, roster = roster_of(settings())
    roster.gather()
    first, second, third = grid.online
    grid.online = [first, third]
    assert roster.participants(1) == [first, third]
    grid.online = [first, second, third]
    assert roster.participants(2) == [first, third]  # asked anew what it holds
    assert roster.participants(3) == [first, second, third]

    grid.mute = {third}
    roster.note_silent([third])
    assert roster.participants(4) == [first, second]
    assert roster.participants(5) == [first, second]


def test_a_client_that_holds_no_example_out_is_not_asked_to_score():
    grid, roster = roster_of(settings(clients=40, alpha=0.05, min_examples=1, rounds=2))
    roster.gather()
    some = [node_id for node_id in grid.online if roster.held_out(node_id)]
    assert 0 < len(some) < 40 == len(roster.participants(1))
    assert roster.evaluators(1) == roster.evaluators(2) == some


def test_a_silent_node_that_answers_a_question_is_back():
    grid, roster = roster_of(settings())
    roster.gather()
    roster.note_silent(grid.online[:1])
    assert roster.participants(1) == grid.online[1:]  # asked here, heard in the next round
    assert roster.participants(2) == grid.online


def test_a_question_that_was_lost_is_asked_again_and_the_log_says_who_is_missing(
    monkeypatch, caplog
):
    monkeypatch.setattr("fedbary.server_app.roster.roster.AGAIN_SECONDS", 0.3)
    monkeypatch.setattr("fedbary.server_app.roster.roster.LOG_SECONDS", 0.1)
    grid, roster = roster_of(settings(round_timeout=60))
    lost = grid.mute = set(grid.online[1:])
    push, pushes = grid.push_messages, []

    def loses_the_first(messages):
        asked = [message.metadata.dst_node_id for message in messages]
        pushes.append(asked)
        if len(pushes) == 4:
            grid.mute = set()
        return push(messages)

    grid.push_messages = loses_the_first
    with caplog.at_level("INFO"):
        roster.gather()
    assert len(roster.members) == 3
    assert all(set(asked) <= lost for asked in pushes[1:])
    (missing, other) = sorted(lost)
    assert f"(take part: partition 0; not yet: node {missing}, node {other})" in caplog.text
    assert f"Node {missing} has not answered and is asked again{SLOW_START}" in caplog.text


def test_beside_a_ray_that_does_not_start_the_log_says_so_with_where_to_look(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "ray", importlib.import_module("ray"))
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr("fedbary.server_app.roster.roster.LOG_SECONDS", 0.1)
    monkeypatch.setattr("fedbary.server_app.roster.roster.PATIENCE", 0.5)
    grid, roster = roster_of(settings(round_timeout=1.5))
    grid.online = []
    with caplog.at_level("INFO"), pytest.raises(RunError, match="Ray has not started yet"):
        roster.gather()
    said = [record.getMessage() for record in caplog.records]
    first = next(i for i, line in enumerate(said) if line.startswith("Ray has not started yet"))
    assert "0 of 3 nodes can take part (not connected: 3)" in said[:first]
    assert said[first].endswith("logs")


def test_late_answers_to_several_questions_count_once_and_questions_become_rarer(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    questions, times = Questions(), []
    for now[0] in range(0, 1000):
        if questions.due([7]):
            questions.asked([f"{now[0]}"], [7])
            times.append(now[0])
    assert times == [0, 60, 180, 420, 900]
    assert questions.answered("60") == 7
    assert [questions.answered(f"{at}") for at in times] == [None] * 5
    assert questions.due([7]) == [7] and questions.waited_for == set()


def test_a_node_that_comes_later_joins():
    chosen = settings(round_timeout=0.3)
    grid, roster = roster_of(chosen)
    everyone = grid.online
    grid.online = everyone[:2]
    roster.gather()
    grid.online = everyone
    assert roster.participants(1) == everyone[:2]
    assert roster.participants(2) == everyone


def test_a_partition_is_held_by_one_node():
    chosen = settings(round_timeout=0.5)
    nodes = [{"partition-id": partition, "num-partitions": 3} for partition in (0, 1, 1)]
    roster = Roster(Grid(client_app.app, chosen, nodes), chosen, layout_of(chosen))
    roster.gather()
    assert [member.name for member in roster.members] == ["partition 0", "partition 1"]


def test_with_nobody_there_the_wait_ends():
    grid, roster = roster_of(settings(round_timeout=0.5))
    roster.gather()
    grid.online = []
    assert roster.participants(1) == []


def test_a_node_that_comes_back_with_other_data_is_known_by_those():
    grid, roster = roster_of(settings())
    roster.gather()
    everyone, last = grid.online, grid.online[2]
    grid.online = everyone[:2]
    roster.participants(1)
    grid._contexts[last].node_config = {"data-path": "/none.npz", "name": "other"}
    grid.online = everyone
    roster.participants(2)
    assert roster.participants(3) == everyone[:2]
    grid._contexts[last].node_config = {"partition-id": 2, "num-partitions": 3}
    roster.participants(4)
    assert roster.participants(5) == everyone


def test_a_partition_whose_node_is_gone_may_be_held_by_another():
    chosen = settings()
    nodes = [{"partition-id": partition, "num-partitions": 3} for partition in (0, 1, 2, 2)]
    grid = Grid(client_app.app, chosen, nodes)
    everyone = grid.online
    grid.online = everyone[:3]
    roster = Roster(grid, chosen, layout_of(chosen))
    roster.gather()
    grid.online = [*everyone[:2], everyone[3]]
    roster.participants(1)
    assert roster.participants(2) == grid.online


def test_no_fewer_than_min_replies_are_asked_if_they_are_there():
    grid, roster = roster_of(settings(clients=4, participation=0.5, min_replies=2))
    roster.gather()
    grid.online = grid.online[:3]
    assert len(roster.participants(1)) == 2
    grid.online = grid.online[:2]
    assert len(roster.participants(2)) == 2


HONEST = {"partition-id": 0, "num-partitions": 3, "num-examples": 9, "label-counts": [1] * 10}


@pytest.mark.parametrize(
    ("metrics", "name", "reason"),
    [
        (None, "a", "does not say in whole numbers"),
        ({**HONEST, "num-examples": 0.5}, "a", "does not say in whole numbers"),
        ({**HONEST, "label-counts": [1] * 9}, "a", "9 examples and holds"),
        ({**HONEST, "num-examples": -1}, "a", "-1 examples and holds"),
        ({**HONEST, "partition-id": 3}, "a", "partition 3 of 3"),
        ({**HONEST, "num-examples": 11}, "a", "11 examples and holds"),
        ({**HONEST, "label-counts": [10**12] * 10}, "a", "9 examples and holds"),
        (HONEST, "a" * 65, "1 to 64 printable"),
        (HONEST, "a\nb", "1 to 64 printable"),
        (HONEST, None, "1 to 64 printable"),
    ],
)
def test_answers_that_are_none_are_refused(metrics, name, reason):
    content = RecordDict()
    if metrics is not None:
        content["metrics"] = MetricRecord(metrics)
    if name is not None:
        content["site"] = ConfigRecord({"name": name})
    with pytest.raises(ValueError, match=reason):
        member_from(7, content, classes=10)


def test_one_node_that_lies_about_the_partitions_stalls_nobody():
    def query(message, context):
        reply = client_app.query(message, context)
        if context.node_config["partition-id"] == 0:
            reply.content["metrics"]["num-partitions"] = 10**9
        return reply

    grid, roster = roster_of(settings(round_timeout=3600), app_of(query=query))
    roster.gather()
    assert len(roster.members) == 3


@given(st.lists(st.tuples(st.integers(1, 4), st.sets(st.sampled_from("abcde"))), max_size=20))
def test_a_claim_is_of_whoever_made_it_last_and_of_nobody_once_given_up(answers):
    claims, owners = Claims({}), {}
    for node, made in answers:
        claims.give(made, node)
        owners = {claim: holder for claim, holder in owners.items() if holder != node}
        owners |= dict.fromkeys(made, node)
        assert {c: claims.owner(c, 9, lambda _: True) for c in "abcde"} == {
            c: owners.get(c) for c in "abcde"
        }
