"""The client mod `chart`: Flower's own FedAvg on charted arrays is the rule's strategy."""

import warnings

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from strategies_clients import CLIENTS, TOLERANCE, assert_close, checksum, grid, initial
from strategies_replies import raw

from fedbary.aggregation import RULES, Rule
from fedbary.errors import SettingError
from fedbary.models import build
from strategies import chart, strategy_for


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
    assert strategy.num_admitted == CLIENTS
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
            ArrayRecord(
                {
                    "w_mean": Array(np.float32([m])),
                    "w_log_var": Array(np.float32([v])),
                }
            )
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
    with pytest.raises(SettingError, match="rule: 'GAA'; expected.*a mean: .*RKLB.*WB") as refused:
        chart("GAA")
    assert "GAA" not in refused.value.allowed
    with pytest.raises(SettingError, match="rule: 'Krum'"):
        chart("Krum")
    with pytest.raises(SettingError, match="convention: 'x'"):
        chart("RKLB", "x")


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
