"""Without rounds, clients that fail, lie or fall silent cost their own replies, at any speed."""

import math
from collections import Counter

import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from linkstates import LinkedGrid
from strategies_clients import CLIENTS, client_app, initial

from fedbary.errors import RunError
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import Asynchronous, strategy_for
from fedbary.strategies.gate import LEAST

pytestmark = pytest.mark.slow

BAD = 0
"""The partition of the client that misbehaves."""

NODE = BAD + 2
HONEST = CLIENTS - 1


def moved(reply, by):
    """A reply whose means and point weights lie further off."""
    held = reply.content["arrays"].to_torch_state_dict()
    points = {n for n, t in held.items() if t.is_floating_point() and "log" not in n}
    held |= {name: held[name] + by for name in points}
    reply.content["arrays"] = ArrayRecord(held)
    return reply


def fails(reply):
    raise OSError("no space left on device")


def claims_nothing(reply):
    reply.content["metrics"]["num-examples"] = 0
    return reply


def is_another(reply):
    reply.metadata.__dict__["_src_node_id"] = NODE + 1
    return reply


def falls_silent(reply):
    return None


WAYS = {
    "fails": fails,
    "NaN": lambda reply: moved(reply, math.nan),
    "far": lambda reply: moved(reply, 1e9),
    "claims nothing": claims_nothing,
    "is another": is_another,
    "is silent": falls_silent,
}


class Federation(InlineGrid):
    """Clients, some of which do to their replies what `ways` says at each question."""

    def __init__(self, ways):
        self.ways = {node: iter(each) for node, each in ways.items()}
        self.asked = Counter()

        def mod(message, context, call_next):
            reply, node = call_next(message, context), message.metadata.dst_node_id
            self.asked[node] += 1
            way = next(self.ways[node], None) if node in self.ways else None
            return WAYS[way](reply) if way else reply

        super().__init__(client_app(train_mods=[mod]), CLIENTS, {})

    def push_messages(self, messages):
        ids = super().push_messages(messages)
        for message_id in [each for each in ids if self._replies[each] is None]:
            del self._replies[message_id]  # it stays open: no reply comes
        return ids


RKLB = strategy_for("RKLB")


class Picky(RKLB):
    """A method that cannot compute with a client's replies, which are sound in themselves."""

    def _aggregate(self, sent, replies):
        if any(reply.client == str(NODE) for reply in replies):
            raise ValueError("RKLB cannot compute with it")
        return super()._aggregate(sent, replies)


def strategy(mode, seconds, kind=RKLB, **changes):
    """A strategy that evaluates nothing, and notes the ends of its questions."""
    own = {"fraction_evaluate": 0.0, "max_skipped": 1, **changes}
    run = kind(asynchronous=mode, seconds=seconds, **own)
    run.ends, own = [], run.train_metrics_aggr_fn
    run.train_metrics_aggr_fn = lambda *args: run.ends.extend(run.pace.journal) or own(*args)
    return run


def is_unharmed(run, arrays, rounds, bad=(NODE,)):
    """Each aggregate counts, no honest client is refused, and the model is no other's."""
    assert run.counted == rounds
    assert {refusal.node_id for refusal in run.refusals} <= {*bad}
    assert all(float(t.double().abs().max()) < 100 for t in arrays.to_torch_state_dict().values())


MODES = st.builds(
    Asynchronous,
    buffer=st.integers(1, HONEST),
    concurrency=st.sampled_from([None, 2, 3, CLIENTS]),
    staleness=st.sampled_from(["constant", "even"]),
)


@given(
    MODES, st.lists(st.sampled_from([*WAYS, None]), max_size=60), st.floats(1e-3, 3),
    st.booleans(), st.booleans(),
)  # fmt: skip
@settings(max_examples=15)
def test_a_client_that_does_anything_at_any_speed_costs_its_own_replies(
    mode, ways, speed, remember, real
):
    some = Federation({NODE: ways})
    run = strategy(mode, None if real else lambda n, _: speed if n == NODE else 1 + 0.1 * n,
                   remember=remember)  # fmt: skip
    made = run.start(some, initial(), num_rounds=8, timeout=0.05).arrays
    is_unharmed(run, made, 8)


@pytest.mark.in_turn
@pytest.mark.parametrize("way", [way for way in WAYS if way != "is silent"])
@pytest.mark.parametrize("concurrency", [None, 2])
@pytest.mark.parametrize("buffer", [1, 2])
def test_who_fails_fast_is_asked_again_only_after_another_has_replied(way, concurrency, buffer):
    some = Federation({NODE: [way] * 1000})
    run = strategy(Asynchronous(buffer=buffer, concurrency=concurrency),
                   lambda node, _: 1e-3 if node == NODE else 1.0)  # fmt: skip
    made = run.start(some, initial(), num_rounds=12).arrays
    is_unharmed(run, made, 12)
    of_others = [row for row in run.ends if row["site"] != str(NODE)]
    assert len(of_others) == max(LEAST, buffer) + 11 * buffer
    last = 0.0
    for row in run.ends:
        if row["site"] == str(NODE):
            assert row["asked"] == 0 or any(last < o["arrived"] <= row["asked"] for o in of_others)
            last = row["arrived"]
    assert some.asked[NODE] > 1


@pytest.mark.parametrize("buffer", [1, 2, CLIENTS])
@pytest.mark.parametrize("concurrency", [None, 2])
def test_a_reply_that_spoils_an_aggregate_is_replaced_by_another_s(buffer, concurrency):
    mode = Asynchronous(buffer=buffer, concurrency=max(buffer, concurrency or CLIENTS))
    run = strategy(mode, lambda node, _: 1e-3 if node == NODE else 1.0 + 0.1 * node, Picky)
    made = run.start(Federation({}), initial(), num_rounds=12).arrays
    is_unharmed(run, made, 12)
    assert len(run.refusals) > 1 and f"async/distances/{NODE}" not in run.state_dict()
    assert all("cannot compute with it" in refusal.reason for refusal in run.refusals)
    assert len(run.pace.staleness) == min(buffer, HONEST)
    assert not run.unanswered


@pytest.mark.parametrize("buffer", [1, 2, CLIENTS])
def test_if_all_fail_the_run_ends_after_as_many_failures_of_each_as_may_be_skipped(buffer):
    some = Federation({node: ["fails"] * 99 for node in range(2, 2 + CLIENTS)})
    run = strategy(Asynchronous(buffer=buffer), lambda *_: 1.0, max_skipped=3)
    with pytest.raises(RunError, match="3 rounds in a row were skipped"):
        run.start(some, initial(), num_rounds=20)
    assert set(some.asked.values()) == {3}


def test_one_client_alone_is_asked_again_though_it_failed():
    some = Federation({node: ["fails"] * 99 for node in range(2, 2 + CLIENTS) if node != NODE})
    some.ways[NODE] = iter(["fails", None, "fails", None])
    run = strategy(Asynchronous(), lambda *_: 1.0, max_skipped=2)
    run.start(some, initial(), num_rounds=6)
    assert run.counted == 4 and some.asked[NODE] == 6


@pytest.mark.parametrize("seconds", [None, lambda node, _: 1e-3 if node == NODE else 1.0])
@pytest.mark.parametrize("later", [None, "far"])
def test_the_first_reply_is_compared_with_the_next_ones(seconds, later):
    """However fast it is, whoever sends it: nobody else's numbers lie a thousand million away."""
    some = Federation({NODE: ["far", *[later] * 50]})
    run = strategy(Asynchronous(), seconds)
    made = run.start(some, initial(), num_rounds=10).arrays
    is_unharmed(run, made, 10)
    assert run.refusals[0].round == 1 and "as far from the sent arrays" in run.refusals[0].reason


def test_a_client_that_replies_more_often_than_all_others_does_not_set_the_measure():
    """Others move by 0.01; its replies lie fifty times as far off after each fifteen of them."""

    def mod(message, context, call_next):
        reply, arrays = call_next(message, context), message.content["arrays"]
        reply.content["arrays"] = arrays
        if context.node_config["partition-id"] != BAD:
            return moved(reply, 0.01)
        sent.append(9.0 * 50 ** (len(sent) // 15))
        return moved(reply, sent[-1])

    sent = []
    run = strategy(Asynchronous(), lambda node, _: 0.02 if node == NODE else 1.0)
    some = InlineGrid(client_app(train_mods=[mod]), CLIENTS, {})
    made = run.start(some, initial(), num_rounds=60).arrays
    assert max(sent) >= 450 and {refusal.node_id for refusal in run.refusals} == {NODE}
    assert max(float(t.abs().max()) for t in made.to_torch_state_dict().values()) < 15 * 9


def test_two_clients_that_can_be_compared_with_nobody_are_not_held_up():
    silent = {node: ["is silent"] * 9 for node in (4, 5)}
    run = strategy(Asynchronous(), None)
    run.start(Federation(silent), initial(), num_rounds=6, timeout=0.3)
    assert run.counted == 6
    assert Counter(row["end"] for row in run.ends)["replied"] == 2 + 5


@pytest.mark.parametrize("way", ["fails", "NaN", "far", "claims nothing"])
def test_on_the_state_of_a_superlink_nothing_of_the_others_is_lost(way):
    """Threads, real time, replies that are handed out once; its own are a hundred times as fast."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        return WAYS[way](reply) if context.node_config["partition-id"] == BAD else reply

    some = LinkedGrid(
        client_app(train_mods=[mod]), CLIENTS, lambda k: 1e-3 if k == BAD else 0.1 + 0.01 * k
    )
    node = next(node for node, k in some.partitions.items() if k == BAD)
    run = strategy(Asynchronous(), None)
    made = run.start(some, initial(), num_rounds=10).arrays
    is_unharmed(run, made, 10, {node})
    assert all(row["end"] == "replied" for row in run.ends if row["site"] != str(node))


def test_in_rounds_too_a_reply_in_another_s_name_is_refused_and_the_other_s_counts():
    some = Federation({NODE: ["is another"] * 9})
    run = strategy_for("RKLB")(fraction_evaluate=0.0)
    run.start(some, initial(), num_rounds=3)
    assert [refusal.node_id for refusal in run.refusals] == [NODE] * 3
    assert "which was not asked" in run.refusals[0].reason
    assert sorted(run.contributors) == [NODE + 1, NODE + 2, NODE + 3]
