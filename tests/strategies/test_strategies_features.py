"""What Flower offers to the users of FedAvg, with these strategies in its place."""

import math

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, MetricRecord
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp.strategy import (
    FedAvg,
    FedProx,
    Result,
)
from strategies_clients import (
    CLIENTS,
    assert_posterior,
    checksum,
    floating,
    grid,
    initial,
    moved,
    round_of,
)
from strategies_replies import raw

from fedbary.aggregation import aggregate
from fedbary.errors import SettingError
from strategies import (
    CONVENTIONS,
    RKLB,
    posterior_from_arrays,
    strategy_for,
)

FEDBARY = CONVENTIONS["fedbary"]


def test_a_fraction_of_the_clients_trains_and_another_evaluates():
    seen = {}

    def of_training(records, key):
        seen["train"] = sorted(record["metrics"]["partition-id"] for record in records)
        return MetricRecord({"clients": len(records)})

    def of_evaluation(records, key):
        return MetricRecord({"evaluators": len(records)})

    strategy = RKLB(
        fraction_train=0.5, fraction_evaluate=0.75,
        train_metrics_aggr_fn=of_training, evaluate_metrics_aggr_fn=of_evaluation,
    )  # fmt: skip
    result = strategy.start(grid(), initial(), num_rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == {"clients": 2}
    assert dict(result.evaluate_metrics_clientapp[1]) == {"evaluators": 3}
    assert_posterior(result.arrays, round_of("RKLB", initial(), 1, seen["train"]))


def test_the_result_and_evaluate_fn_are_as_with_fedavg():
    def run(strategy):
        calls = []

        def evaluate(server_round, arrays):
            calls.append((server_round, checksum(arrays)))
            return MetricRecord({"sum": calls[-1][1]}) if server_round != 2 else None

        return strategy.start(grid(), initial(), num_rounds=3, evaluate_fn=evaluate), calls

    result, calls = run(RKLB())
    reference, _ = run(FedAvg())
    assert isinstance(result, Result)
    assert list(result.arrays) == list(reference.arrays)
    for field in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        ours, theirs = getattr(result, field), getattr(reference, field)
        assert list(ours) == list(theirs) == [1, 2, 3]
        assert all(ours[r].keys() == theirs[r].keys() for r in ours)
    assert [r for r, _ in calls] == [0, 1, 2, 3]
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 3]
    assert calls[-1][1] == checksum(result.arrays)
    assert result.train_metrics_clientapp[1]["partition-id"] == pytest.approx(2.0)
    sums = [result.evaluate_metrics_clientapp[r]["sum"] for r in (1, 2, 3)]
    assert sums == pytest.approx([total for _, total in calls[1:]])


def test_configs_reach_the_clients_as_with_fedprox():
    config = ConfigRecord({"proximal-mu": 0.25})
    ours = RKLB().start(grid(), initial(), num_rounds=1, train_config=config)
    theirs = FedProx(proximal_mu=0.25).start(grid(), initial(), num_rounds=1)
    assert ours.train_metrics_clientapp[1]["proximal-mu"] == pytest.approx(0.25)
    assert theirs.train_metrics_clientapp[1]["proximal-mu"] == pytest.approx(0.25)


def test_records_may_go_by_other_keys():
    def renaming(message, context, call_next):
        message.content["arrays"] = message.content.pop("model")
        message.content["config"] = message.content.pop("how")
        reply = call_next(message, context)
        reply.content["metrics"]["n"] = reply.content["metrics"].pop("num-examples")
        if "arrays" in reply.content:
            reply.content["model"] = reply.content.pop("arrays")
        return reply

    keys = {"arrayrecord_key": "model", "configrecord_key": "how", "weighted_by_key": "n"}
    result = RKLB(**keys).start(grid(mods=[renaming]), initial(), num_rounds=2)
    assert raw(result.arrays) == raw(RKLB().start(grid(), initial(), num_rounds=2).arrays)


def test_mods_that_only_look_change_nothing():
    mods = [message_size_mod, arrays_size_mod]
    result = RKLB().start(grid(mods=mods), initial(), num_rounds=2)
    assert raw(result.arrays) == raw(RKLB().start(grid(), initial(), num_rounds=2).arrays)


@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod])
def test_clients_may_clip_their_updates(mod):
    start = floating(initial())

    def trained(clipping_norm):
        config = ConfigRecord({"clipping_norm": clipping_norm})
        strategy = RKLB()
        result = strategy.start(grid(train_mods=[mod]), start, num_rounds=1, train_config=config)
        assert strategy.num_admitted == CLIENTS
        return result

    wide, narrow = trained(1e9), trained(0.01)
    assert_posterior(wide.arrays, round_of("RKLB", start, 1, range(CLIENTS)))
    if mod is adaptiveclipping_mod:
        assert wide.train_metrics_clientapp[1]["norm_bit"] == 0
        assert narrow.train_metrics_clientapp[1]["norm_bit"] == 1
    for key, array in narrow.arrays.items():
        np.testing.assert_allclose(array.numpy(), start[key].numpy(), atol=0.02)


def test_local_differential_privacy_noises_what_is_aggregated():
    start = floating(initial())
    noise = LocalDpMod(clipping_norm=1e9, sensitivity=0.1, epsilon=10.0, delta=1e-5)
    std = 0.1 * math.sqrt(2 * math.log(1.25 / 1e-5)) / 10
    sent = []

    def spy(message, context, call_next):
        reply = call_next(message, context)
        sent.append((reply.content["metrics"]["num-examples"], reply.content["arrays"]))
        return reply

    np.random.seed(0)
    strategy = RKLB()
    result = strategy.start(grid(train_mods=[spy, noise]), start, num_rounds=1)
    assert strategy.num_admitted == CLIENTS
    posteriors = [posterior_from_arrays(arrays, FEDBARY) for _, arrays in sent]
    assert_posterior(result.arrays, aggregate("RKLB", posteriors, [weight for weight, _ in sent]))
    before = posterior_from_arrays(start, FEDBARY)
    errors = []
    for (weight, _), noised in zip(sent, posteriors, strict=True):
        clean = moved(before, 100 + weight - 1)
        errors += [(noised.mean[name] - clean.mean[name]).flatten() for name in clean.mean]
        errors += [(noised.log_var[name] - clean.log_var[name]).flatten() for name in clean.log_var]
    assert float(torch.cat(errors).std()) == pytest.approx(std, rel=0.2)


@pytest.mark.parametrize("mod", [fixedclipping_mod, LocalDpMod(1.0, 0.1, 10.0, 1e-5)])
def test_flower_s_mods_turn_an_evaluation_into_an_error(mod):
    strategy = RKLB()
    config = ConfigRecord({"clipping_norm": 1.0})
    strategy.start(grid(mods=[mod]), floating(initial()), num_rounds=1, train_config=config)
    assert strategy.num_admitted == len(strategy.refusals) == CLIENTS


def test_models_that_count_batches_pass_flower_s_local_privacy():
    noise = LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=10.0, delta=1e-5)
    strategy = RKLB()
    result = strategy.start(grid(train_mods=[noise]), initial(), num_rounds=2)
    assert strategy.num_admitted == CLIENTS
    count = result.arrays["bn.num_batches_tracked"].numpy()
    assert (count, count.dtype) == (9, np.int64)


@pytest.mark.parametrize(
    ("name", "takes"), [("RKLB", "trim_fraction"), ("FedPA", "rho"), ("WB", "fraction_train")]
)
def test_an_argument_that_there_is_not_is_named_with_those_there_are(name, takes):
    with pytest.raises(TypeError, match=rf"^{name} has no argument 'rho0'; it takes .*\b{takes}\b"):
        strategy_for(name)(rho0=1)


def test_a_name_that_is_neither_a_rule_s_nor_a_method_s_gets_those_of_both():
    with pytest.raises(SettingError, match=r"rule or method: 'pvi'; expected .*\bWB\b.*\bPVI\b"):
        strategy_for("pvi")
