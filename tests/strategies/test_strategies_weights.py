"""What a reply may weigh in a foreign project, and which metrics win where replies differ."""

import logging
import math
from copy import deepcopy
from statistics import median_low

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_replies import failure, raw, reply

from fedbary.errors import SettingError
from strategies import RKLB
from strategies.admission import MOST_NUMBERS, evaluate_refusal, metric_refusals
from strategies.gate import MOST_AT_ONCE, ReplyGate
from strategies.weights import bounded, weight_of

POSITIVE = st.one_of(st.integers(1, 10**18), st.floats(1e-300, 1e300))


def weights(replies):
    return [weight_of(message, "num-examples") for message in replies]


@settings(deadline=None)
@given(st.lists(POSITIVE, min_size=1, max_size=7), st.floats(1, 1e3), st.data())
def test_no_weight_exceeds_its_limit_nor_the_ratio_to_the_median(claimed, ratio, data):
    limits = data.draw(st.lists(st.one_of(st.none(), POSITIVE), min_size=7, max_size=7))
    replies = [reply(k, num_examples=weight) for k, weight in enumerate(claimed)]
    before = deepcopy([dict(message.content["metrics"]) for message in replies])
    result = weights(bounded(replies, "num-examples", lambda node: limits[node], ratio))
    held = [float(w if m is None else min(w, m)) for w, m in zip(claimed, limits, strict=False)]
    for weight, may in zip(result, held, strict=True):
        assert weight == min(may, ratio * median_low(held))
    assert [dict(message.content["metrics"]) for message in replies] == before
    assert weights(bounded(replies, "num-examples", None, None)) == [float(w) for w in claimed]


@pytest.mark.parametrize("honest", [1, 2, 5])
def test_a_million_times_the_others_examples_do_not_make_a_client_the_aggregate(honest):
    others = [reply(k, num_examples=100) for k in range(honest)]
    bold = reply(9, num_examples=1e12, loss=None)
    fair = reply(9, num_examples=200)
    strategy = RKLB(max_weight_ratio=2)
    aggregate, _ = strategy.aggregate_train(1, [bold, *others])
    assert raw(aggregate) == raw(RKLB().aggregate_train(1, [fair, *others])[0])
    assert raw(aggregate) != raw(RKLB().aggregate_train(1, [bold, *others])[0])


def test_in_evaluation_the_ratio_holds_too():
    replies = [reply(1, num_examples=10, loss=1.0), reply(2, num_examples=1e12, loss=5.0)]
    metrics = RKLB(max_weight_ratio=3).aggregate_evaluate(1, replies)
    assert metrics["loss"] == pytest.approx((1 + 3 * 5) / 4)


@settings(deadline=None)
@given(st.lists(st.tuples(POSITIVE, st.floats(-1e300, 1e300)), min_size=1, max_size=6))
def test_means_of_admitted_metrics_are_finite_and_between_their_extremes(pairs):
    replies = [reply(k, num_examples=w, loss=loss) for k, (w, loss) in enumerate(pairs)]
    metrics = RKLB().aggregate_evaluate(1, replies)
    low, high = min(loss for _, loss in pairs), max(loss for _, loss in pairs)
    slack = 1e-9 * max(abs(low), abs(high)) + math.ulp(0.0)
    assert low - slack <= metrics["loss"] <= high + slack


def test_two_weights_that_overflow_do_not_make_every_metric_0():
    replies = [reply(k, num_examples=1.7e308, loss=1.0) for k in (1, 2)]
    assert RKLB().aggregate_evaluate(1, [*replies, reply(3, loss=2.0)])["loss"] == 2.0


@pytest.mark.parametrize("ratio", [0.5, 0, -1, math.nan, math.inf])
def test_a_ratio_below_1_is_an_error(ratio):
    with pytest.raises(SettingError, match="max_weight_ratio: "):
        RKLB(max_weight_ratio=ratio)


@pytest.mark.parametrize("bad", [{"loss": [0.1, 0.2]}, {"loss": 7.0}, {"loss": math.inf}])
@pytest.mark.parametrize("others", [{}, {"more": 1}])
def test_what_is_no_number_under_a_known_key_is_left_out_and_nothing_else(bad, others):
    """The hostile one has the smaller weight, by which it comes first."""
    replies = [reply(1, num_examples=1, **bad), reply(2, num_examples=9, loss=0.5, **others)]
    for seen in (replies, replies[::-1]):
        strategy = RKLB(known_metrics={"loss": (0.0, 1.0)})
        assert strategy.aggregate_evaluate(1, seen)["loss"] == 0.5
        assert strategy.admitted_nodes == [2]
    assert metric_refusals([reply(1, **others), reply(2)], {"loss": (0.0, 1.0)}) == [None, None]


@pytest.mark.parametrize("bad", [{"loss": [0.1, 0.2]}, {"more": [1]}, {"loss": None}])
def test_of_two_forms_that_with_numbers_for_lists_and_none_missing_wins(bad):
    replies = [
        reply(1, **{"num_examples": 1, "loss": 0.5, **bad}),
        reply(2, num_examples=9, loss=0.5),
    ]
    assert [why is None for why in metric_refusals(replies)] == [False, True]


def test_too_many_metrics_are_refused_before_they_are_read():
    many = reply(1, **{f"metric{k}": k for k in range(MOST_NUMBERS)})
    long = reply(1, losses=[0.0] * MOST_NUMBERS)
    for message in (many, long):
        assert f"allowed are {MOST_NUMBERS}" in evaluate_refusal(message, "num-examples")
    assert evaluate_refusal(reply(1, losses=[0.0] * 900), "num-examples") is None


def test_of_many_refusals_some_are_said_and_the_number_of_the_others(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    strategy = RKLB()
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy.aggregate_evaluate(1, [failure(k, "x" * 10**4) for k in range(1000)])
    assert len(strategy.refusals) == MOST_AT_ONCE == len(caplog.records) - 1
    assert caplog.records[-1].getMessage().endswith(f"{1000 - MOST_AT_ONCE} more")
    assert max(len(refusal.reason) for refusal in strategy.refusals) < 300


def test_an_error_that_flower_sends_for_a_site_is_named_after_the_site():
    """Flower signs what it sends for a site that died as node 1."""
    question = reply(5)
    question.metadata.dst_node_id = 77
    gate = ReplyGate({77: "north"}.get)
    gate.ask([question])
    died = failure(1, "gone")
    died.metadata.__dict__["_reply_to_message_id"] = question.metadata.message_id
    assert gate.admitted(1, [died], ["replied with error 5: gone"], "num-examples") == []
    assert gate.refusals[0].reason == "north (node 77): replied with error 5: gone"
    assert gate.refusals[0].node_id == 77
