"""A SuperLink hands a reply out once: who asks again gets an error, and no reply is lost."""

import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from linkstates import LinkedGrid
from strategies_clients import CLIENTS, client_app, grid, initial

from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.grids import Guarded, Watched
from fedbary.strategies import Asynchronous, strategy_for

GRIDS = [lambda: grid(), lambda: LinkedGrid(client_app(), CLIENTS)]


def pulled(some, ids):
    while not (replies := list(some.pull_messages(ids))):
        pass
    return replies


@pytest.mark.parametrize("make", GRIDS, ids=["inline", "SuperLink's state"])
def test_who_asks_again_for_a_reply_gets_an_error_in_its_place(make):
    some = make()
    node, *_ = some.get_node_ids()
    (sent,) = some.push_messages([Message(RecordDict(), node, "query")])
    (first,) = pulled(some, [sent])
    for asked in (sent, "never sent"):
        (again,) = some.pull_messages([asked])
        assert again.error.code == ErrorCode.MESSAGE_UNAVAILABLE
        assert again.metadata.reply_to_message_id == asked
    assert first.metadata.reply_to_message_id == sent and first.metadata.src_node_id == node
    assert list(some.pull_messages([])) == []


@pytest.mark.parametrize("remember", [False, True])
@pytest.mark.parametrize("buffer", [1, 2, CLIENTS])
def test_every_reply_counts_in_real_time(remember, buffer):
    """Clients reply at once and together, so several replies come in one pull."""
    some = LinkedGrid(client_app(), CLIENTS, lambda partition: 0.01 * (partition // 2))
    run = strategy_for("RKLB")(
        asynchronous=Asynchronous(buffer=buffer), remember=remember, fraction_evaluate=0.0
    )
    ends, own = [], run.train_metrics_aggr_fn
    run.train_metrics_aggr_fn = lambda *args: ends.extend(run.pace.journal) or own(*args)
    run.start(grid=Guarded(some), initial_arrays=initial(), num_rounds=8)
    assert not run.refusals and {row["end"] for row in ends} == {"replied"}
    assert run.counted == 8 and len(ends) >= 8 * buffer


class Unsent(InlineGrid):
    """A SuperLink that does not take messages to a node: it has left, and is listed still."""

    gone = 2

    def push_messages(self, messages):
        messages = list(messages)
        taken = [each for each in messages if each.metadata.dst_node_id != self.gone]
        ids = iter(super().push_messages(taken))
        return [next(ids) if each in taken else None for each in messages]

    def pull_messages(self, message_ids):
        assert all(isinstance(each, str) for each in message_ids)
        return super().pull_messages(message_ids)


@pytest.mark.parametrize("seconds", [None, lambda node, now: 1.0])
def test_a_message_that_the_superlink_does_not_take_is_waited_for_by_nobody(seconds):
    some = Unsent(client_app(), CLIENTS, {})
    run = strategy_for("RKLB")(
        asynchronous=Asynchronous(buffer=CLIENTS), seconds=seconds, fraction_evaluate=0.0
    )
    run.start(grid=some, initial_arrays=initial(), num_rounds=2, timeout=3600)
    assert run.counted == 2 and len(run.pace.staleness) == CLIENTS - 1 and not run.refusals
    assert {row["end"] for row in run.pace.journal if row["site"] == str(some.gone)} == {"lost"}


def test_nor_by_the_grid_that_counts_replies(tmp_path):
    some = Watched(Guarded(Unsent(client_app(), CLIENTS, {})), tmp_path / "progress", 1)
    messages = [Message(RecordDict(), node, "query") for node in some.get_node_ids()]
    replies = some.send_and_receive(messages, timeout=3600)
    assert {reply.metadata.src_node_id for reply in replies} == {3, 4, 5}
