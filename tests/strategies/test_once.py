"""Long entries of a config reach every client in every round, and travel once."""

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from server_app.engine.inline import InlineGrid
from server_app.grids.watched import Watched
from strategies.once import KEPT, LONG, OnceGrid, once

NUMBERS = {
    "long": [0.5 * k for k in range(LONG)], "short": [1.0, 2.0], "word": "a", "server-round": 1,
}  # fmt: skip


class Counted(InlineGrid):
    """A grid that knows what configs it carried."""

    def __init__(self, *args):
        super().__init__(*args)
        self.carried = []

    def push_messages(self, messages):
        messages = list(messages)
        self.carried += [dict(message.content["config"]) for message in messages]
        return super().push_messages(messages)


def federation(heard, clients=3):
    app = ClientApp(mods=[once])

    @app.train()
    def train(message, context):
        heard.append(dict(message.content["config"]))
        if heard[-1].get("fails"):
            raise ValueError("no")
        content = {"arrays": ArrayRecord(), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return Counted(app, clients, {})


def asked(grid, **more):
    config = {**NUMBERS, **more}
    messages = [
        Message(RecordDict({"config": ConfigRecord(config)}), node, "train")
        for node in grid.get_node_ids()
    ]
    return list(grid.send_and_receive(messages, timeout=60))


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_long_entry_travels_once_and_is_heard_in_every_round(is_watched, tmp_path):
    heard = []
    inner = federation(heard)
    grid = OnceGrid(Watched(inner, tmp_path / "progress", 3) if is_watched else inner)
    for _ in range(3):
        assert not any(reply.has_error() for reply in asked(grid))
    assert heard == [NUMBERS] * 9
    assert [("long" in config) for config in inner.carried] == [True] * 3 + [False] * 6
    assert all(len(config[KEPT + "long"]) == 32 for config in inner.carried[3:])


def test_another_entry_of_the_name_travels_again():
    heard = []
    inner = federation(heard)
    grid, other = OnceGrid(inner), NUMBERS["long"][::-1]
    asked(grid), asked(grid, long=other), asked(grid, long=other)
    assert [config["long"] for config in heard[3:]] == [other] * 6
    assert [("long" in config) for config in inner.carried] == [True] * 6 + [False] * 3


def test_a_node_that_was_started_again_is_sent_it_within_the_round():
    heard = []
    inner = federation(heard)
    grid = OnceGrid(inner)
    asked(grid)
    first = min(inner.get_node_ids())
    for key in [*inner._contexts[first].state]:
        del inner._contexts[first].state[key]
    replies = asked(grid)
    assert sorted(reply.metadata.src_node_id for reply in replies) == sorted(inner.get_node_ids())
    assert not any(reply.has_error() for reply in replies) and heard[3:] == [NUMBERS] * 3


def test_a_node_that_failed_is_sent_all_again():
    heard = []
    inner = federation(heard)
    grid = OnceGrid(inner)
    assert all(reply.has_error() for reply in asked(grid, fails=True))
    asked(grid)
    assert all("long" in config for config in inner.carried)


def test_a_server_without_the_grid_is_answered():
    heard = []
    asked(federation(heard)), asked(federation(heard))
    assert heard == [NUMBERS] * 6
