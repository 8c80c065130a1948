"""What a SuperNode sends may be any bytes: reading it ends nothing and names its client."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given
from hypothesis import strategies as st

from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.grids import UNREADABLE, Guarded


def content():
    return RecordDict(
        {
            "arrays": ArrayRecord([np.zeros(3)]),
            "metrics": MetricRecord({"num-examples": 1, "list": [0.5]}),
            "config": ConfigRecord({"name": "x", "bytes": b"y"}),
        }
    )


class Servers(InlineGrid):
    """A grid that reads replies from bytes, as that of real servers does; node 3 spoils its own."""

    def __init__(self, nodes=3, spoil=lambda contents: contents):
        def app(message, context):
            return Message(content(), reply_to=message)

        super().__init__(app, nodes, {})
        self._spoil = spoil

    def pull_messages(self, message_ids):
        return [self._read(reply) for reply in super().pull_messages(message_ids)]

    def _read(self, reply):
        contents = {key: o.deflate() for key, o in get_all_nested_objects(reply.content).items()}
        if reply.metadata.src_node_id == 3:
            contents = self._spoil(contents)
        whole = inflate_object_from_contents(reply.content.object_id, contents)
        reply.__dict__["_content"] = whole
        return reply


def asked(grid):
    messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    return {r.metadata.src_node_id: r for r in grid.send_and_receive(messages, timeout=5)}


@given(st.data())
def test_bytes_that_cannot_be_read_are_an_error_of_their_client(data):
    def spoil(contents):
        key = data.draw(st.sampled_from(sorted(contents)))
        held = bytearray(contents[key])
        head = held.index(b"\0") + 1
        for _ in range(data.draw(st.integers(1, 4))):
            if len(held) > head:
                held[data.draw(st.integers(head, len(held) - 1))] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):
            del held[data.draw(st.integers(head, len(held))) :]
        return {**contents, key: bytes(held)}

    replies = asked(Guarded(Servers(spoil=spoil)))
    assert sorted(replies) == [2, 3, 4]
    assert not replies[2].has_error() and not replies[4].has_error()
    if replies[3].has_error():
        assert "its message cannot be read" in replies[3].error.reason


def test_without_the_guard_one_reply_ends_all():
    """Else the guard would prove nothing."""

    def spoil(contents):
        return {key: held[: held.index(b"\0") + 1] + b"[" for key, held in contents.items()}

    with pytest.raises(UNREADABLE):
        asked(Servers(spoil=spoil))
    assert asked(Guarded(Servers(spoil=spoil)))[3].has_error()


def test_a_connection_that_fails_is_no_client_s_fault():
    class Gone(Servers):
        def pull_messages(self, message_ids):
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        asked(Guarded(Gone()))
