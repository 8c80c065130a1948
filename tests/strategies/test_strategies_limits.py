"""What is admitted has a sound aggregate, and whatever spoils one is refused by name."""

import math
from unittest.mock import patch

import pytest
import torch
from every_method import NIGHT
from flwr.app import ArrayRecord, ConfigRecord
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies_replies import NO_GRID, NOBODY, raw, reply, started

from fedbary.aggregation import RULES, CoordinateRule, Rule
from fedbary.aggregation.sums import value_limit
from fedbary.strategies import CONVENTIONS, Convention, PosteriorStrategy, admission, strategy_for
from fedbary.strategies.arrays import tensor_from_array
from fedbary.strategies.conventions import check_arrays, scale_from
from fedbary.strategies.gate import spoilers, train_refusal

DTYPES = [torch.float16, torch.float32, torch.float64]
UNITS = ["log_var", "log_std", "std", "rho"]
VALUES = st.sampled_from([-1.0, -1e-3, 0.0, 1e-3, 1.0])


def model(unit, dtype, mean, log_var, point):
    """Two Gaussian weights and two points; 1 is the most that is admitted, of each."""
    convention = Convention("*_m", "*_s", unit)
    finite = torch.finfo(dtype).max

    def values(parts, gaussian):
        most = min(0.999 * value_limit(dtype, gaussian), finite)
        return (torch.tensor(parts, dtype=torch.float64) * most).to(dtype)

    log_var = torch.tensor(log_var, dtype=torch.float64) * 40
    state = {
        "w_m": values(mean, True),
        "w_s": scale_from(log_var, convention, dtype),
        "b": values(point, False),
    }
    return convention, ArrayRecord(state)


pairs = st.lists(VALUES, min_size=2, max_size=2)
clients = st.lists(
    st.tuples(pairs, pairs, pairs, st.sampled_from([1e-9, 1.0, 1e12])), min_size=1, max_size=7
)
FAR = ([1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], 1e-9)
OPPOSITE = ([-1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], 1e12)


@pytest.mark.parametrize("rule", [*RULES, "FedAG"])
@given(
    sent=clients,
    dtype=st.sampled_from(DTYPES),
    unit=st.sampled_from(UNITS),
    beta=st.sampled_from([0.0, 0.9]),
)
@example(sent=[FAR, FAR], dtype=torch.float32, unit="log_var", beta=0.0)
@example(sent=[FAR, OPPOSITE, FAR], dtype=torch.float64, unit="rho", beta=0.9)
@example(sent=[FAR, OPPOSITE, FAR], dtype=torch.float16, unit="std", beta=0.9)
@settings(max_examples=100 if NIGHT else 10)
def test_whatever_is_admitted_has_a_sound_aggregate_that_is_admitted_again(
    rule, sent, dtype, unit, beta
):
    convention, start = model(unit, dtype, [0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    records = [(model(unit, dtype, *arrays)[1], weight) for *arrays, weight in sent]
    if rule == "FedAG":
        start = without_scale(start)
        records = [(without_scale(record), weight) for record, weight in records]
    options = {} if rule == "FedAG" else {"convention": convention, "server_momentum": beta}
    strategy = strategy_for(rule)(**options, federation=NOBODY)
    with distances_aside():
        for server_round in (1, 2, 3):
            strategy.configure_train(server_round, start, ConfigRecord(), NO_GRID)
            replies = [reply(k, r, num_examples=weight) for k, (r, weight) in enumerate(records)]
            start, _ = strategy.aggregate_train(server_round, replies)
            assert not strategy.refusals
            check_arrays(start, records[0][0], convention)
            assert train_refusal(reply(1, start), start, convention, "num-examples") is None


def distances_aside():
    """Let replies be as far apart as numbers can be; how far is too far is another law."""
    return patch.object(admission, "farness", lambda records, *_: [1.0] * len(records))


def without_scale(record):
    return ArrayRecord({key: array for key, array in record.items() if key != "w_s"})


def gaussians(mean, log_var=-4.0, dtype=torch.float32):
    return ArrayRecord(
        {
            "w_mean": torch.full((3,), mean, dtype=dtype),
            "w_log_var": torch.full((3,), log_var, dtype=dtype),
            "b": torch.full((2,), mean, dtype=dtype),
        }
    )


FAR_OFF = [
    (torch.float32, 3.4e38, -40.0),
    (torch.float32, 1e38, -4.0),
    (torch.float64, 1e300, -40.0),
    (torch.float64, -1e300, 0.0),
]


@pytest.mark.parametrize(
    ("rule", "dtype", "mean", "log_var"),
    [(rule, *far) for rule in [*RULES, "FedAG"] for far in FAR_OFF]
    + [(rule, torch.float32, -1e25, -39.0) for rule in RULES],
)
def test_a_mean_that_no_arithmetic_can_carry_is_refused_by_name(rule, dtype, mean, log_var):
    """One such reply skipped every round, and nobody was named."""

    def arrays(mean, log_var=-4.0):
        record = gaussians(mean, log_var, dtype)
        return ArrayRecord({"b": record["b"]}) if rule == "FedAG" else record

    honest = [reply(k, arrays(float(k))) for k in (1, 2, 3)]
    hostile = reply(9, arrays(mean, log_var), num_examples=1e-9, partition_id=4)
    strategy = started(strategy_for(rule)(), arrays(0.0))
    result, _ = strategy.aggregate_train(1, [hostile, *honest])
    expected, _ = started(strategy_for(rule)(), arrays(0.0)).aggregate_train(1, honest)
    assert raw(result) == raw(expected)
    ((refused),) = strategy.refusals
    assert refused.node_id == 9
    assert "its values run from" in refused.reason


class Cubes(PosteriorStrategy):
    """A rule of one's own whose coordinates leave float32 far below what is admitted."""

    rule = Rule(
        "Cubes", lambda m, lv: (m**3, lv), lambda c, lv: (c.sign() * c.abs() ** (1 / 3), lv)
    )


class Total(PosteriorStrategy):
    """A rule of one's own under which each client alone is sound, but not two far ones."""

    rule = CoordinateRule("Total", lambda stack, hostile: stack.sum(0), counts_hostile=False)


@pytest.mark.parametrize("hostile", [1, 2, 3])
@pytest.mark.parametrize("method", [Cubes, Total])
def test_who_spoils_the_aggregate_of_a_rule_of_one_s_own_is_refused(method, hostile):
    honest = [reply(k, gaussians(float(k), -1.0)) for k in range(1, 6)]
    far = 0.7 * value_limit(torch.float32, True)
    spoiling = [reply(k, gaussians(far, -1.0), num_examples=0.5) for k in range(9, 9 + hostile)]
    strategy = started(method(), gaussians(0.0))
    with distances_aside():
        result, _ = strategy.aggregate_train(1, [*spoiling, *honest])
    refused = {refusal.node_id for refusal in strategy.refusals}
    if method is Total and hostile == 1:
        assert not refused
        return
    assert (
        refused < {9, 10, 11}
        if method is Total
        else refused == {9, 10, 11} & set(range(9, 9 + hostile))
    )
    kept = [r for r in [*spoiling, *honest] if r.metadata.src_node_id not in refused]
    expected, _ = started(method(), gaussians(0.0)).aggregate_train(1, kept)
    assert raw(result) == raw(expected)
    assert all("it makes the aggregate unsound" in r.reason for r in strategy.refusals)


def test_a_round_of_spoilers_alone_is_skipped():
    strategy = started(Cubes(), gaussians(0.0))
    far = 0.7 * value_limit(torch.float32, True)
    assert strategy.aggregate_train(1, [reply(k, gaussians(far)) for k in (1, 2)])[0] is None
    assert [refusal.node_id for refusal in strategy.refusals] == [1, 2]


@given(sizes=st.lists(st.floats(0, 100), min_size=1, max_size=12), most=st.floats(1, 300))
def test_as_few_spoilers_as_possible_are_named(sizes, most):
    def attempt(some):
        if sum(some) > most:
            raise ValueError(f"{sum(some)} is too much")

    reasons = spoilers(sizes, attempt, lambda size: size)
    kept = [size for size, reason in zip(sizes, reasons, strict=True) if reason is None]
    assert sum(kept) <= most
    left_out = [size for size, reason in zip(sizes, reasons, strict=True) if reason]
    if left_out and kept:
        assert max(kept) <= min(left_out)
    if left_out and min(left_out) <= most:
        assert sum(sorted(sizes)[: len(kept) + 1]) > most


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONVENTIONS)
def test_scales_of_any_log_variance_are_admitted_in_any_dtype(name, dtype):
    convention = CONVENTIONS[name]
    log_var = torch.tensor([-math.inf, -1e30, -41.0, -39.9, 0.0, 39.9, 41.0, 1e30, math.inf])
    scale = scale_from(log_var, convention, dtype)
    keys = convention.mean.replace("*", "x"), convention.scale.replace("*", "x")
    record = ArrayRecord(dict(zip(keys, (torch.zeros(9, dtype=dtype), scale), strict=True)))
    check_arrays(record, record, convention)
    middle = convention.to_log_var(tensor_from_array(record[keys[1]])[4].double())
    assert abs(middle) < 2e-3
