"""What holds for every method between messages: runs resume, and messages survive as bytes."""

import pytest
from every_method import EVEN, NIGHT, ODD, of_tables, same
from flwr.clientapp import ClientApp
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage

import client_app
from server_app import run
from server_app.engine.inline import InlineGrid, run_inline


def cut_off(chosen, folder, messages):
    """Make a run in which the server is interrupted while it waits for a later message."""
    app, left = ClientApp(), iter(range(messages))

    @app.train()
    def train(message, context):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return client_app.train(message, context)

    app.query()(client_app.query)
    app.query("ask")(client_app.ask)
    app.evaluate()(client_app.evaluate)
    with pytest.raises(KeyboardInterrupt):
        run(InlineGrid(app, chosen.clients, chosen.model_dump()), chosen, folder)


@pytest.mark.parametrize("name", ODD)
def test_a_run_cut_off_at_any_round_goes_on_to_the_same_model(name, tmp_path):
    run_inline(of_tables(name), tmp_path / "whole")
    for messages in (1, 4, 8) if NIGHT else (4,):
        folder = tmp_path / f"cut{messages}"
        cut_off(of_tables(name, output=str(folder)), folder, messages)
        run_inline(of_tables(name, resume="last"), folder)
        assert same(folder, tmp_path / "whole")


class Wire(InlineGrid):
    """Messages and what clients remember pass between nodes as bytes, as between processes."""

    def _answer(self, message):
        node = message.metadata.dst_node_id
        context = context_to_proto(self._contexts[node]).SerializeToString()
        self._contexts[node] = context_from_proto(ProtoContext.FromString(context))
        return by_wire(super()._answer(by_wire(message)))


def by_wire(message):
    return message_from_proto(
        ProtoMessage.FromString(message_to_proto(message).SerializeToString())
    )


@pytest.mark.parametrize("name", EVEN)
def test_what_travels_and_what_is_remembered_survives_as_bytes(name, tmp_path):
    chosen = of_tables(name, output=str(tmp_path / "wire"))
    run(Wire(client_app.app, chosen.clients, chosen.model_dump()), chosen, tmp_path / "wire")
    run_inline(of_tables(name), tmp_path / "plain")
    assert same(tmp_path / "wire", tmp_path / "plain")
