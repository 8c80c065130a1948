"""A strategy on real Flower messages: whom it asks, what it admits, aggregates and says."""

import inspect
import itertools
import logging
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from refusals import refused
from strategies_replies import GLOBAL, NO_GRID, failure, raw, reply, started, state

from fedbary import strategies
from fedbary.aggregation import RULES, rule_named
from fedbary.errors import SettingError
from fedbary.methods.fedag import fit_gaussian, stacked
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import (
    CONVENTIONS,
    RKLB,
    Convention,
    FedAG,
    Federation,
    MultiKrum,
    PosteriorStrategy,
    TrimmedMean,
    aggregate_records,
    strategy_for,
)


@pytest.fixture
def warned(monkeypatch):
    """The messages of Flower's logger at WARNING."""
    lines = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "handlers", [handler])
    return lines


def spoilt(node_id: int, **metrics) -> Message:
    bad = state(node_id) | {"fc.weight_mean": torch.full((4, 3), math.nan)}
    return reply(node_id, bad, **metrics)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_class_that_aggregates_by_it(rule):
    cls = strategy_for(rule)
    assert issubclass(cls, PosteriorStrategy)
    assert cls is strategy_for(rule)
    assert cls.__name__ == rule
    assert cls.__doc__
    replies = [reply(k) for k in (1, 2, 3)]
    arrays, metrics = started(cls()).aggregate_train(1, replies)
    records = [ArrayRecord(state(k)) for k in (1, 2, 3)]
    expected = aggregate_records(rule_named(rule), records, [2, 3, 4], CONVENTIONS["fedbary"])
    assert raw(arrays) == raw(expected)
    assert list(arrays) == list(GLOBAL)
    assert metrics == MetricRecord({})


def test_the_classes_go_by_their_names():
    assert {strategies.RKLB, strategies.WB, strategies.FKLB} <= {*map(strategy_for, RULES)}
    with pytest.raises(AttributeError, match="FedAvg"):
        _ = strategies.FedAvg
    refused("rule or method: 'Krum'", strategy_for, "Krum")


def test_the_arguments_are_fedavg_s_in_its_order():
    names = [name for name in inspect.signature(FedAvg).parameters]
    values = [
        0.5,
        0.25,
        3,
        4,
        5,
        "w",
        "a",
        "c",
        lambda *_: MetricRecord(),
        lambda *_: MetricRecord(),
    ]
    ours = RKLB(*values, convention="blitz", min_replies=2)
    for name, value in zip(names, values, strict=True):
        assert getattr(ours, name) == value
    by_name = RKLB(**dict(zip(names, values, strict=True)))
    assert by_name.min_available_nodes == 5
    assert (ours.convention, ours.admission.min_replies) == (CONVENTIONS["blitz"], 2)
    with pytest.raises(TypeError):
        RKLB(*values, "fedbary")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_replies": 0}, "min_replies: 0"),
        ({"convention": "x"}, "convention: 'x'"),
        ({"max_precision_ratio": 0.5}, "max_precision_ratio: 0.5"),
        ({"trim_fraction": 0.5}, "trim_fraction: 0.5"),
    ],
)
def test_settings_without_sense_are_errors(arguments, message):
    refused(message, TrimmedMean, **arguments)


def test_a_robust_strategy_trims_as_it_is_told():
    replies = [reply(k) for k in range(1, 11)]
    records = [next(iter(r.content.array_records.values())) for r in replies]
    rule = replace(rule_named("TrimmedMean"), trim_fraction=0.4)
    expected = aggregate_records(rule, records, [1] * 10, CONVENTIONS["fedbary"])
    strategy = TrimmedMean(trim_fraction=0.4)
    assert raw(started(strategy).aggregate_train(1, replies)[0]) == raw(expected)
    assert TrimmedMean().rule == rule_named("TrimmedMean")


def test_a_strategy_bounds_precisions():
    collapsed = state(9) | {
        "fc.weight_mean": torch.full((4, 3), 50.0),
        "fc.weight_log_var": torch.full((4, 3), -39.0),
    }
    replies = [*(reply(k) for k in (1, 2, 3)), reply(9, collapsed, num_examples=1)]
    owned = started(RKLB()).aggregate_train(1, replies)[0]
    np.testing.assert_allclose(owned["fc.weight_mean"].numpy(), 50, rtol=1e-3)
    bounded = started(RKLB(max_precision_ratio=1)).aggregate_train(1, replies)[0]
    assert (bounded["fc.weight_mean"].numpy() < 25).all()


def test_a_round_with_too_few_replies_for_the_rule_is_skipped(warned):
    strategy = started(MultiKrum(trim_fraction=0.3))
    arrays, metrics = strategy.aggregate_train(1, [reply(k) for k in (1, 2, 3, 4)])
    assert (arrays, metrics) == (None, MetricRecord({"skipped": 1}))
    assert warned == [
        "aggregate_train: round 1 is skipped: number of posteriors: 4; "
        "expected 5 or more for MultiKrum to leave out 1"
    ]
    assert strategy.aggregate_train(2, [reply(k) for k in range(1, 6)])[0] is not None


def test_the_aggregate_is_that_of_the_admitted_alone(warned):
    good = [reply(k, loss=float(k)) for k in (1, 2, 3)]
    bad = [
        spoilt(4, partition_id=9, loss=1.0),
        failure(5, "out of memory"),
        reply(6, num_examples=-1, loss=1.0),
        reply(7, {"w": torch.zeros(1)}, loss=1.0),
    ]
    strategy, pure = started(), started()
    arrays, metrics = strategy.aggregate_train(3, [bad[0], good[0], *bad[1:], *good[1:]])
    expected_arrays, expected_metrics = pure.aggregate_train(3, good)
    assert raw(arrays) == raw(expected_arrays)
    assert metrics == expected_metrics
    assert metrics["loss"] == pytest.approx((2 * 1 + 3 * 2 + 4 * 3) / 9)
    assert [(r.round, r.node_id) for r in strategy.refusals] == [(3, 4), (3, 5), (3, 6), (3, 7)]
    assert strategy.refusals[0].reason.startswith("node 4 (partition 9): array 'fc.weight_mean'")
    assert warned == [f"Round 3, reply refused: {r.reason}" for r in strategy.refusals]
    assert not pure.refusals


@pytest.mark.parametrize("same", ["weights", "weights and metrics", "weights and arrays"])
def test_neither_the_order_of_replies_nor_their_nodes_change_a_byte(same):
    def content(k):
        noise = torch.randn(500, generator=torch.Generator().manual_seed(k))
        arrays = state(0) if "arrays" in same else state(0) | {"noise": noise}
        return reply(
            k, arrays, num_examples=3, loss=0.1 if "metrics" in same else math.sin(k) * 10**k
        )

    contents = [content(k) for k in range(1, 6)]
    sent = contents[0].content["arrays"]
    results = set()
    for seed, order in enumerate(itertools.islice(itertools.permutations(contents), 0, None, 7)):
        nodes = random.Random(seed).sample(range(100, 200), 5)
        replies = [
            Message(message.content, metadata=failure(node, "").metadata)
            for message, node in zip(order, nodes, strict=True)
        ]
        arrays, metrics = started(arrays=sent).aggregate_train(1, replies)
        evaluation = RKLB().aggregate_evaluate(1, replies)
        results.add((*raw(arrays).values(), repr(metrics), repr(evaluation)))
    assert len(results) == 1


def test_a_round_with_too_few_replies_is_skipped(warned):
    strategy = started(RKLB(min_replies=3))
    result = strategy.aggregate_train(2, [reply(1), spoilt(2), reply(3)])
    assert result == (None, MetricRecord({"skipped": 1}))
    said = "aggregate_train: round 2 is skipped: 2 replies admitted, 3 needed; node 2: array "
    assert warned[-1].startswith(said)
    assert strategy.aggregate_train(3, [])[0] is None
    assert strategy.aggregate_train(4, iter([reply(1), reply(2), reply(3)]))[0] is not None


def test_metrics_unlike_the_others_do_not_stop_a_round(warned):
    replies = [reply(1, loss=1.0), reply(2, loss=3.0), reply(3, loss=[1.0], more=2)]
    strategy = started()
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert raw(arrays) == raw(started().aggregate_train(1, [reply(k) for k in (1, 2, 3)])[0])
    assert dict(metrics) == pytest.approx({"loss": (2 * 1.0 + 3 * 3.0) / 5})
    assert not strategy.refusals
    assert warned[0].startswith("Round 1, metrics left out: node 3: its metrics are loss[1]")


def test_evaluation_refuses_what_it_cannot_average(warned):
    strategy = RKLB()
    bad = [
        failure(4, "gone"),
        reply(5, num_examples=None, loss=1.0),
        reply(6, num_examples=math.nan, loss=1.0),
        reply(7, accuracy=1.0),
    ]
    good = [reply(1, loss=1.0), reply(2, loss=3.0)]
    metrics = strategy.aggregate_evaluate(2, [*bad, *good])
    assert dict(metrics) == pytest.approx({"loss": (2 * 1.0 + 3 * 3.0) / 5})
    assert sorted(r.node_id for r in strategy.refusals) == [4, 5, 6, 7]
    assert len(warned) == 4
    assert RKLB().aggregate_evaluate(1, bad[:1]) is None
    assert RKLB().aggregate_evaluate(1, []) is None


def test_the_metrics_functions_see_the_admitted_replies():
    seen = []

    def count(records, key):
        seen.append((sorted(r["metrics"][key] for r in records), key))
        return MetricRecord({"clients": len(records)})

    strategy = started(RKLB(train_metrics_aggr_fn=count, evaluate_metrics_aggr_fn=count))
    assert strategy.aggregate_train(1, [reply(1), spoilt(2), reply(3)])[1]["clients"] == 2
    assert strategy.aggregate_evaluate(1, [reply(1), failure(2, "")])["clients"] == 1
    assert seen == [([2, 4], "num-examples"), ([2], "num-examples")]


def test_without_configure_train_the_first_sound_reply_is_the_reference():
    strategy = RKLB()
    arrays, _ = strategy.aggregate_train(1, [failure(9, ""), spoilt(1), reply(2), reply(3)])
    assert raw(arrays) == raw(started().aggregate_train(1, [reply(2), reply(3)])[0])
    assert [r.node_id for r in strategy.refusals] == [9, 1]
    assert RKLB().aggregate_train(1, [spoilt(1)])[0] is None
    assert RKLB().aggregate_train(1, [failure(1, "")])[0] is None


def test_the_caller_may_choose_the_nodes():
    chosen = Federation(trainers=lambda r: [30 + r, 10], evaluators=lambda r: [20])
    strategy = RKLB(fraction_evaluate=0.5, federation=chosen)
    InlineGrid(ClientApp(), 1, {})
    for configure, kind, nodes in (
        (strategy.configure_train, "train", [32, 10]),
        (strategy.configure_evaluate, "evaluate", [20]),
    ):
        messages = list(configure(2, GLOBAL, ConfigRecord({"lr": 0.1}), NO_GRID))
        assert [message.metadata.dst_node_id for message in messages] == nodes
        assert {message.metadata.message_type for message in messages} == {kind}
        expected = {"lr": 0.1, "server-round": 2}
        if kind == "train":
            expected["method"] = "barycentre"
        assert messages[0].content["config"] == ConfigRecord(expected)
        assert raw(messages[0].content["arrays"]) == raw(GLOBAL)


def test_a_global_model_with_an_orphaned_scale_is_an_error_at_once():
    with pytest.raises(ValueError, match="'w_log_var' is a scale without its mean"):
        started(arrays=ArrayRecord({"w_log_var": torch.zeros(1)}))


def test_the_summary_names_rule_and_convention(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO, "flwr"):
        RKLB(convention=Convention("*.m", "*.s", "std"), min_replies=2).summary()
        TrimmedMean(trim_fraction=0.3, max_precision_ratio=2).summary()
    assert "Rule: RKLB" in caplog.text
    assert "Fraction of hostile clients: 0.3" in caplog.text
    assert "Maximum precision: 2 × the median" in caplog.text
    assert "Convention: Convention(mean='*.m', scale='*.s', unit='std')" in caplog.text
    assert "Minimum replies: 2" in caplog.text
    assert "Minimum nodes: train" in caplog.text


@pytest.mark.parametrize(("replies", "protects"), [(4, False), (5, True)])
@pytest.mark.parametrize("settings", [{"rule": "TrimmedMean"}, {"rule": "WB", "mixing": True}])
def test_a_defence_against_none_says_so(settings, replies, protects, warned):
    named = "mixing" if "mixing" in settings else settings["rule"]
    strategy = started(PosteriorStrategy(trim_fraction=0.2, **settings))
    strategy.aggregate_train(1, [reply(k, state(k)) for k in range(replies)])
    said = [line for line in warned if "does not protect" in line]
    few = "0.2 of 4 replies is less than one"
    assert said == ([] if protects else [f"aggregate_train: {named} does not protect: {few}"])


def aggregated(strategy, replies):
    return started(strategy, ArrayRecord(points(0))).aggregate_train(1, replies)[0]


NAMES = ("hidden.weight", "output.weight")


def points(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(2, 3, generator=generator) for name in NAMES}


def test_clients_go_on_from_the_mean_and_the_posterior_is_their_spread():
    strategy = FedAG()
    arrays = aggregated(strategy, [reply(k, points(k)) for k in (1, 2, 3)]).to_torch_state_dict()
    expected = fit_gaussian(stacked([points(k) for k in (1, 2, 3)]))
    found = strategy.predictive(arrays)
    for name, tensor in arrays.items():
        assert torch.equal(tensor, found.posterior.mean[name])
        torch.testing.assert_close(tensor, expected.mean[name])
        torch.testing.assert_close(found.posterior.log_var[name], expected.log_var[name])
    assert sorted(strategy.contributors) == [1, 2, 3]
    for place, node in enumerate(strategy.contributors):
        assert torch.equal(found.members[NAMES[0]][place], points(node)[NAMES[0]])


def test_clients_count_alike_and_refused_replies_count_for_nothing():
    bad = points(4) | {NAMES[0]: torch.full((2, 3), math.nan)}
    replies = [reply(1, points(1), num_examples=1), reply(2, points(2), num_examples=999)]
    strategy = FedAG()
    arrays = aggregated(strategy, [*replies, reply(4, bad), failure(5, "no disk")])
    mean = (points(1)[NAMES[0]] + points(2)[NAMES[0]]) / 2
    torch.testing.assert_close(arrays.to_torch_state_dict()[NAMES[0]], mean)
    assert [refusal.node_id for refusal in strategy.refusals] == [4, 5]
    assert aggregated(FedAG(), [failure(1, "gone")]) is None


def test_arrays_that_are_not_floating_are_the_clients_mean_and_no_part_of_the_posterior():
    def sent(k):
        steps = torch.tensor([7 + k, -(2**63)] if k else [7, 2**63 - 1])
        return points(k) | {"steps": steps, "wave": torch.tensor([k + 2j])}

    lying = reply(1, sent(1))
    lying.content["arrays"]["steps"].dtype = "float64"
    strategy = started(FedAG(), ArrayRecord(sent(0)))
    replies = [reply(0, sent(0)), lying, reply(3, sent(3))]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays["steps"].dtype == "int64"
    steps, third = arrays["steps"].numpy().tolist(), 2**64 // 3
    assert steps[0] == 8 and steps[1] == pytest.approx(-(2**63) + third, rel=1e-12)
    assert arrays["wave"].numpy() == pytest.approx([4 / 3 + 2j])
    assert strategy.predictive(arrays.to_torch_state_dict()).posterior.mean.keys() == set(NAMES)


def test_it_goes_by_its_name_and_says_what_it_is_not_for():
    assert strategy_for("FedAG") is FedAG is strategies.FedAG
    refused("estimator", FedAG, estimator="mean")
    with pytest.raises(SettingError, match="another method for a network with Gaussian arrays"):
        FedAG().configure_train(1, ArrayRecord(state(0)), ConfigRecord(), NO_GRID)
