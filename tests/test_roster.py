"""Who takes part: nodes that come late, fall silent, come back, or hold data that do not fit."""

import pytest
from flwr.clientapp import ClientApp

import client_app
from fedbary.config import resolve
from fedbary.errors import RunError, SettingError
from fedbary.federation import task_of
from server_app.inline import InlineGrid
from server_app.roster import Roster


def settings(**changes):
    small = {"engine": "inline", "clients": 3, "min_examples": 5, "round_timeout": 5}
    return resolve({**small, **changes})


class Grid(InlineGrid):
    """An inline federation of which only the nodes in `online` are there, and some are mute."""

    def __init__(self, app, chosen, nodes=None):
        super().__init__(app, nodes or chosen.clients, chosen.model_dump())
        self.online = list(super().get_node_ids())
        self.mute = set()

    def get_node_ids(self):
        return list(self.online)

    def _answer(self, message):
        self.last = message.metadata.dst_node_id
        return super()._answer(message)

    def push_messages(self, messages):
        messages = list(messages)
        spoken = [m for m in messages if m.metadata.dst_node_id not in self.mute]
        ids = iter(super().push_messages(spoken))
        return [next(ids) if m in spoken else "never" for m in messages]


def roster_of(chosen, app=client_app.app):
    grid = Grid(app, chosen)
    return grid, Roster(grid, chosen, task_of(chosen))


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


def test_waiting_ends_and_with_enough_nodes_the_run_goes_on():
    grid, roster = roster_of(settings(round_timeout=0.5))
    grid.online = grid.online[:2]
    roster.gather()
    assert [member.partition for member in roster.members] == [0, 1]
    grid, roster = roster_of(settings(round_timeout=0.5, min_replies=3))
    grid.online = grid.online[:2]
    with pytest.raises(RunError, match="2 of 3 nodes answered within 0.5 seconds"):
        roster.gather()


def test_if_no_node_can_take_part_the_reason_is_given_without_waiting_for_the_timeout(monkeypatch):
    monkeypatch.setattr("server_app.roster.GRACE_SECONDS", 0.2)
    app = ClientApp()

    @app.query()
    def query(message, context):
        raise SettingError("data_dir", "/none", "a folder that exists")

    _, roster = roster_of(settings(round_timeout=3600), app)
    with pytest.raises(RunError, match="no node can take part: .*data_dir"):
        roster.gather()


def test_a_node_whose_data_do_not_fit_is_left_out_until_they_do():
    broken, app = {2}, ClientApp()

    @app.query()
    def query(message, context):
        if context.node_config["partition-id"] in broken:
            raise SettingError("data_dir", "/none", "a folder that exists")
        return client_app.query(message, context)

    grid, roster = roster_of(settings(), app)
    roster.gather()
    assert [member.partition for member in roster.members] == [0, 1]
    broken.clear()
    assert len(roster.participants(1)) == 2
    assert roster.participants(2) == grid.online


def test_who_is_away_or_silent_is_passed_over_and_trains_again_once_back():
    grid, roster = roster_of(settings())
    roster.gather()
    first, second, third = grid.online
    grid.online = [first, third]
    assert roster.participants(1) == [first, third]
    grid.online = [first, second, third]
    assert roster.participants(2) == [first, second, third]

    grid.mute = {third}
    roster.note_silent([third])
    assert roster.participants(3) == [first, second]
    assert roster.participants(4) == [first, second]


def test_a_silent_node_that_answers_a_question_is_back():
    grid, roster = roster_of(settings())
    roster.gather()
    roster.note_silent(grid.online[:1])
    assert roster.participants(1) == grid.online[1:]  # asked here, heard in the next round
    assert roster.participants(2) == grid.online


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
    chosen = settings()
    nodes = [{"partition-id": partition, "num-partitions": 3} for partition in (0, 1, 1)]
    roster = Roster(Grid(client_app.app, chosen, nodes), chosen, task_of(chosen))
    roster.gather()
    assert [member.name for member in roster.members] == ["partition 0", "partition 1"]


def test_with_nobody_there_the_wait_ends():
    grid, roster = roster_of(settings(round_timeout=0.5))
    roster.gather()
    grid.online = []
    assert roster.participants(1) == []
