"""Which replies and metrics are admitted, what a reply may weigh, what is said of others."""

import io
import logging
import math
import pickle
import re
from copy import deepcopy
from statistics import median_low

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from hypothesis import example, given
from hypothesis import strategies as st
from strategies_replies import failure, raw, reply, state

from fedbary.errors import SettingError
from fedbary.strategies import CONVENTIONS, RKLB, Convention, Federation
from fedbary.strategies.admission import MOST_AT_ONCE
from fedbary.strategies.gate import (
    MOST_NUMBERS,
    bounded,
    evaluate_refusal,
    metric_refusals,
    train_refusal,
    weight_of,
)

REFERENCE = ArrayRecord(state(0))
FEDBARY = CONVENTIONS["fedbary"]


def reason(message, reference=REFERENCE, convention=FEDBARY):
    return train_refusal(message, reference, convention, "num-examples")


def with_array(key: str, array) -> ArrayRecord:
    record = ArrayRecord(state(1))
    record[key] = array if isinstance(array, Array) else Array(array)
    return record


def with_bytes(data: bytes) -> ArrayRecord:
    return with_array("conv.weight", Array("float32", (2, 3), "numpy.ndarray", data))


def npy(array, allow_pickle=False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


FULL = np.full((4, 3), -4, np.float32)
SOUND = npy(np.zeros((2, 3), np.float32))


def changed(base, index, value):
    array = base.copy()
    array[index] = value
    return array


def test_a_sound_reply_is_admitted():
    assert reason(reply(5)) is None
    assert reason(reply(5, partition_id=3, loss=[1.0, 2.0])) is None
    assert evaluate_refusal(reply(5), "num-examples") is None


@pytest.mark.parametrize("limit", [-40, 40])
def test_the_limits_themselves_are_admitted(limit):
    assert reason(reply(1, with_array("fc.weight_log_var", np.full((4, 3), limit, "f4")))) is None


@pytest.mark.parametrize("unit", ["log_var", "log_std", "std", "rho"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("log_var", [-40.0, 40.0])
def test_the_limits_hold_in_every_unit(unit, dtype, log_var):
    convention = Convention("*_m", "*_s", unit)

    def record(log_var):
        scale = convention.from_log_var(torch.tensor([log_var], dtype=torch.float64)).numpy()
        return ArrayRecord({"w_m": Array(np.zeros(1, dtype)), "w_s": Array(scale.astype(dtype))})

    assert reason(reply(1, record(log_var)), record(0.0), convention) is None
    beyond = reason(reply(1, record(log_var * 1.001)), record(0.0), convention)
    assert "'w_s': its log-variances run from" in beyond


@pytest.mark.parametrize("std", [0.0, -1.0])
def test_a_std_that_is_not_positive_is_refused(std):
    convention = CONVENTIONS["scale"]
    good, bad = (
        ArrayRecord({"loc": torch.zeros(2), "scale": torch.tensor([1.0, last])})
        for last in (1.0, std)
    )
    assert "'scale': its log-variances run from" in reason(reply(1, bad), good, convention)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (with_array("conv.weight", np.full((2, 3), np.nan, "f4")), "'conv.weight': .*not finite"),
        (with_array("fc.weight_mean", changed(FULL, (3, 2), np.inf)), "_mean': .*not finite"),
        (with_array("fc.weight_mean", changed(FULL, (0, 0), -np.inf)), "_mean': .*not finite"),
        (with_array("fc.weight_log_var", changed(FULL, (1, 1), np.nan)), "_log_var': .*not finite"),
        (with_array("fc.weight_log_var", changed(FULL, (1, 1), 41)), "from -4 to 41"),
        (with_array("fc.weight_log_var", changed(FULL, (1, 1), -40.1)), "from -40.1 to -4,"),
        (with_array("fc.scalar_log_var", np.array(50, "f4")), "'fc.scalar_log_var': .*from 50 to"),
        (with_array("conv.weight", np.zeros((2, 3), "g")), "'conv.weight': its dtype is .*PyTorch"),
        (with_array("fc.scalar_mean", np.zeros((1,), "f4")), r"its shape is \(1,\), not \(\)"),
        (with_array("conv.weight", np.zeros((3, 2), "f4")), r"its shape is \(3, 2\), not \(2, 3\)"),
        (with_array("conv.weight", np.zeros((2, 3), "f8")), "its dtype is torch.float64, not"),
        (with_array("bn.num_batches_tracked", np.array(1.0)), "_tracked': its dtype"),
        (with_array("new", np.zeros(1)), "array 'new' is not the global model's"),
        (ArrayRecord({}), "array 'bn.num_batches_tracked' is missing"),
        (with_bytes(b""), "'conv.weight': its header cannot be read"),
        (with_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': ((((((("), "its header cannot be read"),
        (with_bytes(b"\x93NUMPY\x09\x00" + SOUND[8:]), "its header cannot be read"),
        (with_bytes(SOUND[:-1]), "it has 151 bytes where its header asks for 152"),
        (with_bytes(SOUND + b"0"), "it has 153 bytes where its header asks for 152"),
        (with_bytes(npy(np.array([Bomb()], object), allow_pickle=True)), "its dtype is 'object'"),
        (with_bytes(pickle.dumps(Bomb())), "its header cannot be read"),
        (with_bytes(npy(np.zeros((2, 3), "f4,i4"))), "its dtype is"),
        (with_bytes(npy(np.zeros((2, 3), "M8[s]"))), "its dtype is"),
        (with_array("conv.weight", Array("float32", (2, 3), "pickle", SOUND)), "'pickle'"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, said):
    refusal = reason(reply(12, arrays, partition_id=3))
    assert refusal.startswith("array ")
    assert re.search(said, refusal)
    assert "\n" not in refusal


numbers = st.sampled_from([0, 1, 2, 3, 6, True, False, -1, -6, 2**31, 2**62, 2**63, 2**99, 1.0])
headers = st.fixed_dictionaries(
    {
        "descr": st.sampled_from(
            ["<f4", "f4", ">f4", "<f8", "<i8", "|b1", "<c8", "<g", "<M8", "O"]
        ),
        "fortran_order": st.booleans(),
        "shape": st.lists(numbers, max_size=70).map(tuple),
    }
)


@given(header=headers.map(repr) | st.text("-~(){}[],:'1a", max_size=9000), size=st.integers(25, 99))
@example("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 12)}", 48)
@example("{'descr': '<f4', 'fortran_order': False, 'shape': " + "-" * 9000 + "1}", 48)
@example("{'descr': '<f4', 'fortran_order': False, 'shape': (a,)}", 48)
def test_whatever_an_array_s_bytes_are_the_reply_is_refused_by_name(header, size):
    head = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header.encode()
    refusal = reason(reply(12, with_bytes(head + bytes(size)), partition_id=3))
    assert refusal.startswith("array 'conv.weight': ")
    assert " at 0x" not in refusal  # an address of the server's, another in every run


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (None, "no metric 'num-examples'"),
        ([1, 2], r"'num-examples' is \[1, 2\], not a positive finite number"),
        (0, "is 0,"),
        (-3, "is -3,"),
        (math.nan, "is nan,"),
        (math.inf, "is inf,"),
        (10**400, "not a positive finite number"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weight, said):
    message = reply(12, num_examples=weight, loss=1.0)
    for refusal in (reason(message), evaluate_refusal(message, "num-examples")):
        assert said.replace("\\", "") in refusal


def test_errors_are_refused_in_one_line():
    message = failure(12, "Traceback:\n  boom\n" + "x" * 1000)
    for refusal in (reason(message), evaluate_refusal(message, "num-examples")):
        assert refusal.startswith("replied with error 2: Traceback: boom xxx")
        assert len(refusal) < 300
    assert reason(failure(3, None)) == "replied with error 2: None"


def test_a_reply_needs_one_record_of_each_kind():
    two, none = reply(1), reply(1)
    two.content["more"] = ArrayRecord(state(1))
    del none.content["arrays"]
    assert reason(two) == "2 ArrayRecords, not one"
    assert reason(none) == "0 ArrayRecords, not one"
    two, none = reply(1), reply(1)
    two.content["more"] = MetricRecord({"num-examples": 1})
    del none.content["metrics"]
    assert reason(two) == "2 MetricRecords, not one"
    assert evaluate_refusal(none, "num-examples") == "0 MetricRecords, not one"


def test_half_precision_and_empty_arrays_are_checked_too():
    good = ArrayRecord({"h_mean": torch.ones(2).half(), "h_log_var": torch.ones(2).half()})
    bad = ArrayRecord({"h_mean": torch.ones(2).half(), "h_log_var": torch.full((2,), 64.0).half()})
    assert reason(reply(1, good), good) is None
    assert "from 64 to 64" in reason(reply(1, bad), good)
    empty = ArrayRecord({"e": torch.empty(0, 3)})
    assert reason(reply(1, empty), empty) is None


def test_metrics_unlike_most_others_are_told():
    replies = [reply(1, a=1.0), reply(2, a=1.0, b=2), reply(3, a=1), reply(4, a=[1.0, 2.0])]
    assert metric_refusals(replies) == [
        None,
        "its metrics are a, b, num-examples, not a, num-examples",
        None,
        "its metrics are a[2], num-examples, not a, num-examples",
    ]
    assert metric_refusals([]) == []


def test_the_work_of_comparing_metrics_grows_with_the_replies_alone():
    compared = 0

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    replies = [reply(k) for k in range(400)]
    for k, message in enumerate(replies):
        message.content["metrics"][Key(f"loss {k // 2}")] = 1.0
    reasons = metric_refusals(replies)
    assert reasons[:2] == [None, None] and all(reasons[2:])
    assert 0 < compared < 20 * len(replies)


POSITIVE = st.one_of(st.integers(1, 10**18), st.floats(1e-300, 1e300))


def weights(replies):
    return [weight_of(message, "num-examples") for message in replies]


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
        strategy = RKLB(federation=Federation(known_metrics={"loss": (0.0, 1.0)}))
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
    gate = RKLB(federation=Federation(name={77: "north"}.get)).admission
    gate.ask([question])
    died = failure(1, "gone")
    died.metadata.__dict__["_reply_to_message_id"] = question.metadata.message_id
    assert gate.admitted(1, [died], ["replied with error 5: gone"]) == []
    assert gate.refusals[0].reason == "north (node 77): replied with error 5: gone"
    assert gate.refusals[0].node_id == 77
