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
from fedbary.errors import SettingError
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

    inner = AALV(fraction_evaluate=0.0)
    wrapper = DifferentialPrivacyClientSideFixedClipping(inner, 0.0, 1e9, CLIENTS)
    config = ConfigRecord({"equal": case != "unequal weights"})
    clients = grid(train_mods=[spoiling])
    result = wrapper.start(clients, floating(initial()), num_rounds=1, train_config=config)
    skipped = result.train_metrics_clientapp[1].get("skipped", 0)
    assert skipped == (case != "equal weights")
    assert bool(result.arrays) == (case == "equal weights")


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
