"""The client mod `chart`: Flower's own FedAvg on charted arrays is the rule's strategy."""

import math
import re
import warnings

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from refusals import refused
from strategies_clients import (
    CLIENTS,
    TOLERANCE,
    Curious,
    assert_close,
    checksum,
    grid,
    initial,
    masking_mod,
)
from strategies_replies import raw

from fedbary.aggregation import RULES, Rule
from fedbary.errors import SettingError
from fedbary.models import build
from fedbary.strategies import chart, strategy_for


def is_dtype(value):
    return isinstance(value, torch.dtype)


MEANS = [name for name, rule in RULES.items() if isinstance(rule, Rule) and rule.is_mean]


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("convention", ["fedbary", "bayesian-torch", "scale"])
@pytest.mark.parametrize("rule", MEANS)
def test_fedavg_on_charted_arrays_is_the_strategy(rule, convention, dtype):
    mod, start = chart(rule, convention), initial(convention, dtype)
    seen = {}

    def evaluate(server_round, arrays):
        seen[server_round] = checksum(mod.inverse(arrays))

    charted = FedAvg().start(
        grid(convention, mods=[mod]), start, num_rounds=3, evaluate_fn=evaluate
    )
    strategy = strategy_for(rule)(convention=convention)
    plain = strategy.start(grid(convention), start, num_rounds=3)
    assert strategy.admission.num_admitted == CLIENTS
    assert_close(mod.inverse(charted.arrays), plain.arrays, dtype)
    for server_round in (1, 2, 3):
        there = charted.evaluate_metrics_clientapp[server_round]["sum"]
        assert there == pytest.approx(plain.evaluate_metrics_clientapp[server_round]["sum"], 1e-4)
        assert there == pytest.approx(seen[server_round], 1e-6)


def test_starting_from_charted_arrays_is_the_same():
    mod = chart("RKLB")
    results = [
        FedAvg().start(grid(mods=[mod]), start, num_rounds=2).arrays
        for start in (initial(), mod.forward(initial()))
    ]
    assert list(results[0]) == list(results[1])
    assert_close(mod.inverse(results[0]), mod.inverse(results[1]))


@pytest.mark.parametrize("rule", MEANS)
def test_the_inverse_undoes_the_chart(rule):
    arrays = ArrayRecord(
        {
            "n": Array(np.array([3, 2**53], np.int64)),
            "b": Array(np.array([True, False])),
            "half": Array(np.array([0.5], np.float16)),
            "w_log_var": Array(np.linspace(-39, 39, 9, dtype=np.float32)),
            "w_mean": Array(np.linspace(-1, 1, 9, dtype=np.float32)),
            "e_mean": Array(np.empty((0, 2), np.float32)),
            "e_log_var": Array(np.empty((0, 2), np.float32)),
        }
    )
    mod = chart(rule)
    before = raw(arrays)
    back = mod.inverse(mod.forward(arrays))
    assert raw(arrays) == before
    assert raw(back)["n"] == before["n"]
    np.testing.assert_allclose(back["w_log_var"].numpy(), arrays["w_log_var"].numpy(), 1e-5, 1e-5)
    assert_close(
        ArrayRecord({k: v for k, v in back.items() if k != "w_log_var"}),
        ArrayRecord({k: v for k, v in arrays.items() if k != "w_log_var"}),
    )
    assert mod.inverse(arrays) is arrays


def test_tiny_variances_around_far_means_survive_the_subtraction_of_squares():
    mean, log_var = np.array([30.0, 30.001]), np.array([-18.0, -17.0])
    mod = chart("FKLB")
    records = [
        mod.forward(
            ArrayRecord({"w_mean": Array(np.float32([m])), "w_log_var": Array(np.float32([v]))})
        )
        for m, v in zip(mean, log_var, strict=True)
    ]
    averaged = ArrayRecord(
        {key: Array((records[0][key].numpy() + records[1][key].numpy()) / 2) for key in records[0]}
    )
    mean = np.float64(np.float32(mean))
    expected = np.log(np.exp(log_var).mean() + mean.var())
    np.testing.assert_allclose(mod.inverse(averaged)["w_log_var"].numpy(), [expected], rtol=1e-5)


def test_a_rule_that_is_no_mean_is_refused_and_so_is_an_unknown_one():
    with pytest.raises(SettingError, match="rule: 'GAA'; expected.*a mean: .*RKLB.*WB") as caught:
        chart("GAA")
    assert "GAA" not in caught.value.allowed
    refused("rule: 'Krum'", chart, "Krum")
    refused("convention: 'x'", chart, "RKLB", "x")


def test_charted_arrays_do_not_load_into_the_model_by_mistake():
    model = build("cnn", (1, 8, 8), 10, seed=0, bayesian_layers=1)
    charted = chart("RKLB").forward(ArrayRecord(model.state_dict()))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict(charted.to_torch_state_dict())
    model.load_state_dict(chart("RKLB").inverse(charted).to_torch_state_dict())


def test_arrays_of_another_chart_are_errors():
    start = initial()
    mod = chart("RKLB")
    charted = mod.forward(start)
    with pytest.raises(ValueError, match="is charted already"):
        mod.forward(charted)
    with pytest.raises(ValueError, match="'chart/RKLB/.*' is not in the chart of WB"):
        chart("WB").inverse(charted)
    with pytest.raises(ValueError, match="'bias' is not in the chart of RKLB"):
        mod.inverse(ArrayRecord({**charted, "bias": start["conv.weight"]}))
    with pytest.raises(ValueError, match="'fc.weight_mean' was charted by another convention"):
        chart("RKLB", "scale").inverse(charted)
    scales = {k: v for k, v in charted.items() if "/1/" not in k}
    with pytest.raises(ValueError, match="'fc.weight_mean' was charted by another convention"):
        mod.inverse(ArrayRecord(scales))


def test_what_a_server_puts_out_of_the_chart_is_an_error_at_server_and_client():
    mod = chart("RKLB")
    charted = mod.forward(initial())
    key = next(key for key in charted if key.startswith("chart/RKLB/1/"))
    spoilt = ArrayRecord({**charted, key: Array(-charted[key].numpy())})
    with pytest.raises(ValueError, match="holds the RKLB coordinates of no Gaussian"):
        mod.inverse(spoilt)
    result = FedAvg().start(grid(mods=[mod]), spoilt, num_rounds=1)
    assert result.arrays == ArrayRecord({})


@pytest.mark.parametrize("rule", MEANS)
def test_coordinates_of_another_kind_are_errors_and_dtypes_keep_their_kind(rule):
    """A server may average floats in another precision; nothing of another kind is one's arrays."""
    mod, start = chart(rule), initial()
    start["wave"] = Array(np.ones(3, np.complex64))
    charted = mod.forward(start)
    for key, array in charted.items():
        for code in "?bBhHiIlLefdFD":
            with warnings.catch_warnings(action="ignore"):
                other = ArrayRecord({**charted, key: Array(array.numpy().astype(code))})
            if np.dtype(code).kind == array.numpy().dtype.kind:
                assert {k: a.dtype for k, a in mod.inverse(other).items()} == {
                    k: a.dtype for k, a in start.items()
                }
            else:
                with pytest.raises(ValueError, match="coordinates of no Gaussian"):
                    mod.inverse(other)


@pytest.mark.in_turn
@pytest.mark.parametrize("rule", MEANS)
@pytest.mark.parametrize("name", sorted(k for k, v in vars(torch).items() if is_dtype(v)))
def test_a_key_that_names_any_other_dtype_yields_an_array_of_its_kind_or_an_error(name, rule):
    mod, start = chart(rule), initial()
    charted = mod.forward(start)
    for key in charted:
        *words, _, own = key.split("/", 4)
        renamed = {"/".join([*words, name, own]) if k == key else k: charted[k] for k in charted}
        try:
            back = mod.inverse(ArrayRecord(renamed))
        except ValueError:
            continue
        assert back[own].dtype == str(getattr(torch, name)).removeprefix("torch.")
        assert words[-1] == "-" or back[own].numpy().dtype.kind == "f"


def spoiling_mod(message, context, call_next):
    """The innermost mod: partition 3 trains to NaN, partition 2 to a log-variance of 50."""
    reply = call_next(message, context)
    partition = context.node_config["partition-id"]
    if "arrays" in reply.content and partition >= 2:
        key, value = ("fc.weight_log_var", 50) if partition == 2 else ("fc.weight_mean", math.nan)
        array = np.full((4, 3), value, np.float32)
        reply.content["arrays"] = ArrayRecord({**reply.content["arrays"], key: Array(array)})
    return reply


def test_the_client_itself_withholds_what_a_strategy_would_refuse():
    mod = chart("WB")
    charted = FedAvg().start(grid(mods=[mod, spoiling_mod]), initial(), num_rounds=2)
    strategy = strategy_for("WB")()
    plain = strategy.start(grid(mods=[spoiling_mod]), initial(), num_rounds=2)
    assert strategy.admission.num_admitted == 2
    assert_close(mod.inverse(charted.arrays), plain.arrays)


@pytest.mark.parametrize("records", [0, 2])
def test_training_takes_one_array_record_each_way(records):
    def more(message, context, call_next):
        reply = call_next(message, context)
        del reply.content["arrays"]
        for i in range(records):
            reply.content[f"a{i}"] = initial()
        return reply

    replies = []

    class Recording(FedAvg):
        def aggregate_train(self, server_round, messages):
            replies.extend(messages)
            return None, None

    Recording().start(grid(mods=[chart("WB"), more]), initial(), num_rounds=1)
    assert len(replies) == CLIENTS
    for reply in replies:
        assert re.search(f"has {records} ArrayRecords, not one", reply.error.reason)


def test_a_client_s_failure_stays_its_own():
    def failing(message, context, call_next):
        raise RuntimeError("out of memory")

    result = FedAvg().start(grid(mods=[chart("WB"), failing]), initial(), num_rounds=1)
    assert result.arrays == ArrayRecord({})


@pytest.mark.parametrize("rule", ["RKLB", "WB"])
def test_a_server_that_sees_only_masked_replies_computes_the_barycentre(rule):
    mod = chart(rule)
    start = initial(dtype=torch.float64)
    server = Curious()
    masked = server.start(grid(mods=[masking_mod, mod]), start, num_rounds=2)
    plain = strategy_for(rule)().start(grid(), start, num_rounds=2)
    for key, array in mod.inverse(masked.arrays).items():
        np.testing.assert_allclose(array.numpy(), plain.arrays[key].numpy(), 1e-9, 1e-9)
    for arrays in server.seen:
        with pytest.raises(ValueError, match="of no Gaussian"):
            mod.inverse(arrays)


def test_flower_s_clipping_acts_in_the_chart_if_its_mod_stands_outside():
    mod, config = chart("RKLB"), ConfigRecord({"equal": True})
    plain = ArrayRecord({k: v for k, v in initial().items() if v.dtype == "float32"})
    start = mod.forward(plain)
    clients = grid(train_mods=[fixedclipping_mod, mod])

    def trained(clipping_norm):
        inner = FedAvg(fraction_evaluate=0.0)
        wrapper = DifferentialPrivacyClientSideFixedClipping(inner, 0.0, clipping_norm, CLIENTS)
        return wrapper.start(clients, start, num_rounds=1, train_config=config).arrays

    def step(arrays):
        squares = [((arrays[k].numpy() - start[k].numpy()) ** 2).sum() for k in start]
        return math.sqrt(sum(squares))

    expected = strategy_for("RKLB")().start(grid(), plain, num_rounds=1, train_config=config)
    assert_close(mod.inverse(trained(1e9)), expected.arrays)
    assert step(trained(1e9)) > 0.25 > step(trained(0.25)) * (1 - 1e-5) > 0
