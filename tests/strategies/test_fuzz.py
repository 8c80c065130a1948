"""Random hostile replies, evaluations, answers and charted arrays, from a fresh seed each time.

FEDBARY_FUZZ_SEED repeats a failure, whose message names the seed; FEDBARY_FUZZ_REPLIES sets how
many replies are sent (100,000 for a night).
"""

import logging
import os
import secrets

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hostile_replies import NUMBERS, TEXTS
from hostile_replies import Federation as Hostile
from strategies_replies import raw, started

from fedbary.aggregation import RULES, Rule
from fedbary.server_app.roster.member import Member, member_from
from fedbary.strategies import RKLB, chart, strategy_for
from fedbary.strategies.conventions import check_arrays
from fedbary.strategies.gate import train_refusal

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("FEDBARY_FUZZ_SEED") or secrets.randbits(32))
NAMES = ["0", "1", "-", "nn", "", "int8", "complex64", "quint8", "bfloat16", "float64"]
REPLIES = int(os.environ.get("FEDBARY_FUZZ_REPLIES") or 800)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """No line of the log for each of the refusals."""
    monkeypatch.setattr(logging.getLogger("flwr"), "disabled", True)


def run_cases(purpose, replies, check):
    """Call `check(rng)`, which returns how many replies it sent, until all are sent."""
    sent = case = 0
    while sent < replies:
        try:
            sent += check(np.random.default_rng([SEED, purpose, case]))
        except Exception as error:
            error.add_note(f"FEDBARY_FUZZ_SEED={SEED}, case {case} after {sent} replies")
            raise
        case += 1


@pytest.mark.parametrize("rule", [*RULES, "FedAG"])
def test_hostile_replies_are_refused_by_name_and_change_nothing(rule):
    def check(rng):
        return one_run(rule, rng)

    run_cases([*RULES, "FedAG"].index(rule), REPLIES // (len(RULES) + 1), check)


def one_run(rule, rng):
    federation = Hostile(rng, gaussian=rule != "FedAG")
    options = {}
    if rule != "FedAG":
        options["convention"] = federation.convention
        options["server_momentum"] = federation.pick([0.0, 0.0, 0.9])
        options["max_precision_ratio"] = federation.pick([None, None, 1.0, 3.0])
        options["trim_fraction"] = federation.pick([0.2, 0.1, 0.4])
    strategies = [strategy_for(rule)(**options) for _ in range(3)]
    before, sent = federation.arrays, 0
    for server_round in range(1, 4):
        honest = [federation.honest(k, before) for k in range(10, 10 + rng.integers(1, 5))]
        hostile = [federation.hostile(k, before) for k in range(20, 20 + rng.integers(0, 5))]
        replies = honest + [message for message, _ in hostile]
        sent += len(replies)
        first = aggregated(strategies[0], server_round, before, shuffled(rng, replies))
        again = aggregated(strategies[1], server_round, before, shuffled(rng, replies))
        refused = refusals_of(strategies[0], server_round)
        assert refused == refusals_of(strategies[1], server_round)
        for message, unsound in hostile:
            node = message.metadata.src_node_id
            assert node in refused or not unsound, unsound
            assert f"{node}" in refused.get(node, f"{node}")
        assert not refused.keys() & {message.metadata.src_node_id for message in honest}, refused
        kept = [r for r in replies if r.metadata.src_node_id not in refused]
        alone = aggregated(strategies[2], server_round, before, kept)
        assert (first is None) == (again is None) == (alone is None)
        if first is None:
            assert rule == "MultiKrum"
            continue
        assert raw(first) == raw(again) == raw(alone)
        check_arrays(first, before, federation.convention)
        for key, array in first.items():
            assert (array.dtype, array.shape) == (before[key].dtype, before[key].shape)
        before = first
    return sent


def shuffled(rng, replies):
    return [replies[i] for i in rng.permutation(len(replies))]


def aggregated(strategy, server_round, arrays, replies):
    return started(strategy, arrays, server_round).aggregate_train(server_round, replies)[0]


def refusals_of(strategy, server_round):
    return {r.node_id: r.reason for r in strategy.refusals if r.round == server_round}


def test_hostile_evaluations_are_refused_by_name_and_change_nothing():
    def check(rng):
        federation = Hostile(rng, gaussian=False)
        count = int(rng.integers(1, 6))
        honest = [federation.honest(k, federation.arrays) for k in range(10, 10 + count)]
        hostile = [
            federation.hostile(k, federation.arrays, evaluates=True)
            for k in range(20, 20 + rng.integers(0, count))
        ]
        replies = honest + [message for message, _ in hostile]
        results = []
        for _ in range(2):
            strategy = RKLB()
            results.append(strategy.aggregate_evaluate(1, shuffled(rng, replies)))
            refused = refusals_of(strategy, 1)
            for message, unsound in hostile:
                assert message.metadata.src_node_id in refused or unsound is not True
            assert not refused.keys() & {m.metadata.src_node_id for m in honest}, refused
        kept = [r for r in replies if r.metadata.src_node_id not in refused]
        assert repr(results[0]) == repr(results[1]) == repr(RKLB().aggregate_evaluate(1, kept))
        assert np.isfinite(results[0]["loss"])
        return len(replies)

    run_cases(100, REPLIES // 4, check)


def test_any_answer_to_what_a_node_holds_is_a_member_s_or_an_error():
    def check(rng):
        def pick(options):
            return options[rng.integers(len(options))]

        keys = ["partition-id", "num-partitions", "num-examples", "label-counts", *TEXTS]
        numbers = [n for n in NUMBERS if isinstance(n, float) or abs(n) < 2**64]
        metrics = {}
        for key in keys:
            value = pick(numbers)
            if rng.random() < 0.8:
                metrics[key] = pick([value, [value] * rng.integers(0, 4), 3, [3, 3]])
        names = [*TEXTS, 7, b"x", ["site"], True, 1.5]
        content = RecordDict({"metrics": MetricRecord(metrics)})
        content[pick(["site", "sit", "config"])] = ConfigRecord({"name": pick(names)})
        if rng.random() < 0.1:
            del content["metrics"]
        try:
            member = member_from(7, content, pick([0, 2, 3]))
        except ValueError:
            return 1
        assert isinstance(member, Member)
        assert member.name.isprintable() and member.num_examples >= 1
        assert all(type(n) is int and n >= 0 for n in [*member.label_counts, member.partitions])
        return 1

    run_cases(101, REPLIES // 4, check)


@pytest.mark.parametrize("rule", [n for n, r in RULES.items() if isinstance(r, Rule) and r.is_mean])
def test_a_chart_carries_what_is_admitted_and_nothing_else_comes_out_of_it(rule):
    def check(rng):
        federation = Hostile(rng, gaussian=True)
        mod = chart(rule, federation.convention)
        message, _ = federation.hostile(7, federation.arrays)
        records = message.content.array_records.values() if message.has_content() else ()
        plain = next(iter(records), ArrayRecord())
        refusal = train_refusal(message, federation.arrays, federation.convention, "num-examples")
        if refusal is None:
            charted = mod.forward(plain)
            values = [torch.from_numpy(np.array(array.numpy())) for array in charted.values()]
            assert all(value.isfinite().all() for value in values)
            check_arrays(mod.inverse(charted), federation.arrays, federation.convention)
            plain = charted
        for key, array in list(plain.items()):
            if rng.random() < 0.3:
                plain[key] = Array(array.dtype, array.shape, array.stype, changed(rng, array.data))
            if rng.random() < 0.1:
                words = key.split("/")
                words[rng.integers(len(words))] = federation.pick(NAMES)
                plain["/".join(words)] = plain.pop(key)
        try:
            back = mod.inverse(plain)
        except ValueError:
            return 1
        if back is not plain:
            gaussian = {k for pair in federation.convention.pairs(back).items() for k in pair}
            for key, array in back.items():
                values = torch.from_numpy(np.array(array.numpy()))
                assert values.isfinite().all()
                assert key not in gaussian or values.is_floating_point()
        return 1

    run_cases(102, REPLIES // 24, check)


def changed(rng, data):
    data = bytearray(data)
    for _ in range(rng.integers(1, 4) if data else 0):
        data[rng.integers(len(data))] = rng.integers(256)
    return bytes(data)
