"""What Flower offers to the users of FedAvg, mods and privacy too, with these strategies."""

import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedProx,
    Result,
)
from strategies_clients import (
    CLIENTS,
    EQUAL,
    assert_posterior,
    checksum,
    floating,
    grid,
    initial,
    moved,
    round_of,
)
from strategies_replies import raw

from fedbary.aggregation import RULES, aggregate
from fedbary.errors import RunError, SettingError
from fedbary.strategies import (
    AALV,
    CONVENTIONS,
    RKLB,
    Convention,
    posterior_from_arrays,
    strategy_for,
)
from fedbary.strategies.privacy import averages_arrays

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
        assert strategy.admission.num_admitted == CLIENTS
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
    assert strategy.admission.num_admitted == CLIENTS
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
    assert strategy.admission.num_admitted == len(strategy.refusals) == CLIENTS


def test_models_that_count_batches_pass_flower_s_local_privacy():
    noise = LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=10.0, delta=1e-5)
    strategy = RKLB()
    result = strategy.start(grid(train_mods=[noise]), initial(), num_rounds=2)
    assert strategy.admission.num_admitted == CLIENTS
    count = result.arrays["bn.num_batches_tracked"].numpy()
    assert (count, count.dtype) == (9, np.int64)


SCALAR = ArrayRecord({"w_mean": torch.zeros(()), "w_log_var": torch.zeros(())})


WRAPPERS = {
    DifferentialPrivacyServerSideFixedClipping: ((1e9, CLIENTS), ()),
    DifferentialPrivacyServerSideAdaptiveClipping: ((CLIENTS, 1e9), ()),
    DifferentialPrivacyClientSideFixedClipping: ((1e9, CLIENTS), (fixedclipping_mod,)),
    DifferentialPrivacyClientSideAdaptiveClipping: ((CLIENTS, 1e9), (adaptiveclipping_mod,)),
}


def private(cls, strategy, noise=0.0):
    """A wrapped strategy, with clipping that leaves everything as it is, and its clients."""
    arguments, mods = WRAPPERS[cls]
    return cls(strategy, noise, *arguments), grid(train_mods=mods)


@pytest.mark.parametrize("cls", WRAPPERS)
def test_a_wrapper_drives_the_rule_that_averages_arrays(cls):
    start = floating(initial())
    wrapper, clients = private(cls, AALV())
    result = wrapper.start(clients, start, num_rounds=1, train_config=EQUAL)
    expected = round_of("AALV", start, 1, range(CLIENTS), [1] * CLIENTS)
    assert_posterior(result.arrays, expected)


@pytest.mark.in_turn
@pytest.mark.parametrize("rule", sorted(RULES.keys() - {"AALV", "FedAvg"}))
@pytest.mark.parametrize("cls", WRAPPERS)
def test_a_wrapper_is_refused_where_its_noise_would_not_hide_a_client(cls, rule):
    wrapper, clients = private(cls, strategy_for(rule)(fraction_train=0.5))
    allowed = f"for {cls.__name__}: AALV, FedAvg, or Flower's FedAvg with the client mod chart"
    with pytest.raises(SettingError, match=f"rule: '{rule}'; expected {allowed}"):
        wrapper.start(clients, floating(initial()), num_rounds=1)


def test_a_subclass_s_own_methods_do_not_hide_the_wrapper():
    class Mine(RKLB):
        def configure_train(self, *args):
            return super().configure_train(*args)

    wrapper, clients = private(DifferentialPrivacyServerSideFixedClipping, Mine())
    with pytest.raises(SettingError, match="rule: 'RKLB'"):
        wrapper.start(clients, floating(initial()), num_rounds=1)
    assert Mine().start(grid(), initial(), num_rounds=1).arrays


@pytest.mark.parametrize(
    ("strategy", "arrays", "message"),
    [
        (AALV(server_momentum=0.5), floating(initial()), "server_momentum: 0.5"),
        (AALV(), initial(), "array: 'bn.num_batches_tracked';.* not int64 of shape"),
        (AALV(), SCALAR, "array: 'w_mean';.* at least one dimension, not float32 of shape"),
        (AALV(convention="bayesian-torch"), initial("bayesian-torch"), "rule: 'AALV'"),
    ],
)
def test_a_wrapper_is_refused_where_more_than_the_mean_would_be_released(strategy, arrays, message):
    wrapper, clients = private(DifferentialPrivacyClientSideFixedClipping, strategy)
    with pytest.raises(SettingError, match=message):
        wrapper.start(clients, arrays, num_rounds=1)


@pytest.mark.parametrize("case", ["equal weights", "unequal weights", "one refused"])
def test_a_round_is_skipped_that_would_give_one_client_a_larger_share(case):
    def spoiling(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 0 and case == "one refused":
            reply.content["arrays"]["fc.weight_mean"] = Array(np.full((4, 3), np.nan, np.float32))
        return reply

    wrapper = DifferentialPrivacyClientSideFixedClipping(
        AALV(fraction_evaluate=0.0), 0.0, 1e9, CLIENTS
    )
    config = ConfigRecord({"equal": case != "unequal weights"})
    clients = grid(train_mods=[spoiling])
    arguments = {"num_rounds": 2, "train_config": config}
    if case == "equal weights":
        result = wrapper.start(clients, floating(initial()), **arguments)
        assert result.arrays and "skipped" not in result.train_metrics_clientapp[1]
        return
    mend = f"let each of {CLIENTS} clients send the same num-examples, such as 1"
    for _ in range(2):  # a second start begins anew
        with pytest.raises(RunError, match=f"every round was skipped; round 2: .*; {mend}"):
            wrapper.start(clients, floating(initial()), **arguments)


@pytest.mark.parametrize("cls", WRAPPERS)
@pytest.mark.parametrize("fraction_evaluate", [0.0, 1.0])
def test_a_wrapper_s_run_in_which_every_client_fails_raises(cls, fraction_evaluate):
    """Flower's wrappers hand no replies on in which there is no content."""

    def failing(message, context, call_next):
        raise OSError("no space left on device")

    strategy = AALV(fraction_evaluate=fraction_evaluate)
    arguments, _ = WRAPPERS[cls]
    wrapper = cls(strategy, 0.0, *arguments)
    clients = grid(train_mods=[failing])
    with pytest.raises(RunError, match="every round was skipped; round 2: no replies were handed"):
        wrapper.start(clients, floating(initial()), num_rounds=2, train_config=EQUAL)


def test_a_wrapper_s_run_in_which_a_round_counts_ends_with_its_result(caplog):
    def failing_first(message, context, call_next):
        if message.content["config"]["server-round"] == 1:
            raise OSError("no space left on device")
        return call_next(message, context)

    wrapper, _ = private(DifferentialPrivacyServerSideFixedClipping, AALV(fraction_evaluate=0.0))
    clients = grid(train_mods=[failing_first])
    result = wrapper.start(clients, floating(initial()), num_rounds=2, train_config=EQUAL)
    assert result.arrays and "1 of 2 rounds counted" in caplog.text


def test_the_noise_falls_on_means_and_log_variances_alike():
    size = 20_000
    start = ArrayRecord({"w_mean": torch.zeros(size), "w_log_var": torch.full((size,), -4.0)})
    runs = []
    for noise in (0.0, 2.0):
        wrapper = DifferentialPrivacyServerSideFixedClipping(AALV(), noise, 0.1, CLIENTS)
        np.random.seed(0)
        result = wrapper.start(grid(), start, num_rounds=1, train_config=EQUAL)
        runs.append({key: array.numpy() for key, array in result.arrays.items()})
    for key in start:
        difference = runs[1][key] - runs[0][key]
        assert difference.std() == pytest.approx(2.0 * 0.1 / CLIENTS, rel=0.03)
        assert abs(difference.mean()) < 0.002


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_arrays_are_averaged_as_they_are_only_by_means_of_unbounded_logarithms(rule, convention):
    logarithmic = CONVENTIONS[convention].unit in ("log_var", "log_std")
    expected = rule in ("AALV", "FedAvg") and logarithmic
    assert averages_arrays(RULES[rule], CONVENTIONS[convention]) == expected


def test_own_conventions_are_looked_into_too():
    assert averages_arrays(RULES["AALV"], Convention("*/*.m", "*/*.s", "log_std"))
    assert not averages_arrays(RULES["WB"], Convention("*.m", "*.s", "std"))
