"""Flower's wrappers for differential privacy: which strategies they drive or refuse."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp.mod import (
    adaptiveclipping_mod,
    fixedclipping_mod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from strategies_clients import CLIENTS, EQUAL, assert_posterior, floating, grid, initial, round_of

from fedbary.aggregation import RULES
from fedbary.errors import RunError, SettingError
from strategies import (
    AALV,
    CONVENTIONS,
    RKLB,
    Convention,
    strategy_for,
)
from strategies.privacy import averages_arrays

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
    allowed = f"for {cls.__name__}: AALV, FedAvg, Flower's FedAvg with the client mod chart"
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
        (
            AALV(),
            SCALAR,
            "array: 'w_mean';.* at least one dimension, not float32 of shape",
        ),
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
