"""Arrays are read and written as they are, and posteriors by every convention's names."""

import math
import warnings

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from strategies_replies import reply, state

from fedbary.aggregation import RULES, rule_named
from fedbary.gaussian import Posterior
from fedbary.methods.hierarchy import OWN
from fedbary.strategies import (
    CONVENTIONS,
    Convention,
    aggregate_records,
    arrays,
    arrays_from_posterior,
    posterior_from_arrays,
    strategy_for,
)
from fedbary.strategies.arrays import BlankArray, Blanks, array_from_tensor, tensor_from_array
from fedbary.strategies.conventions import Names, convention_named

FEDBARY = CONVENTIONS["fedbary"]
NAMES = {
    "fedbary": ("fc.weight_mean", "fc.weight_log_var"),
    "bayesian-torch": ("rho_net.mu_weight", "rho_net.rho_weight"),
    "torchbnn": ("fc.weight_mu", "fc.weight_log_sigma"),
    "blitz": ("fc.weight_sampler.mu", "fc.weight_sampler.rho"),
    "pyro": ("locs.fc.weight_unconstrained", "scales.fc.weight_unconstrained"),
    "scale": ("fc.loc", "fc.scale"),
}
STD = {
    "log_var": lambda s: np.exp(s / 2),
    "log_std": np.exp,
    "std": lambda s: s,
    "rho": lambda s: np.log1p(np.exp(s)),
}


@pytest.mark.parametrize(
    "values",
    [
        np.array(3.5, np.float32),
        np.arange(6, dtype=np.float16).reshape(2, 3),
        np.arange(24, dtype=np.float64).reshape(2, 3, 4),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.empty((0, 4), np.float32),
        np.array([True, False]),
        np.array([[2**40]], np.int64),
        np.array(5, np.uint8),
        np.arange(3).astype(">f4"),
    ],
    ids=lambda a: f"{a.dtype.str}{list(a.shape)}",
)
def test_arrays_are_read_and_written_exactly(values):
    tensor = tensor_from_array(Array(values))
    np.testing.assert_array_equal(tensor.numpy(), values)
    assert tensor.numpy().dtype == values.dtype.newbyteorder("=")
    assert tensor.is_contiguous()
    written = array_from_tensor(tensor)
    expected = Array(
        np.ascontiguousarray(values, values.dtype.newbyteorder("=")).reshape(values.shape)
    )
    assert written.data == expected.data
    assert (written.dtype, written.shape, written.stype) == (
        expected.dtype,
        expected.shape,
        expected.stype,
    )


def test_reading_copies_nothing_and_warns_of_nothing():
    array = Array(np.arange(1000, dtype=np.float32))
    view = np.frombuffer(array.data, np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = tensor_from_array(array)
    assert 0 < tensor.data_ptr() - view.ctypes.data < 256


def test_writing_copies_nothing():
    blank = BlankArray(torch.empty(1000), torch.float32)
    place = blank.tensor.data_ptr()
    blank.tensor.fill_(2.0)
    array = blank.filled()
    assert tensor_from_array(array).data_ptr() == place
    assert (array.numpy() == 2).all()


@pytest.mark.parametrize("name", CONVENTIONS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_convention_reads_its_unit_and_writes_the_same_record(name, seed):
    convention = CONVENTIONS[name]
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.1, 2, (4, 3)) if convention.unit == "std" else rng.uniform(-9, 5, (4, 3))
    mean_key, scale_key = NAMES[name]
    record = ArrayRecord(
        {
            scale_key: Array(scale.astype(np.float32)),
            "steps": Array(np.array(3)),
            mean_key: Array(rng.standard_normal((4, 3)).astype(np.float32)),
            "plain.weight": Array(np.ones(2, np.float32)),
        }
    )
    posterior = posterior_from_arrays(record, convention)
    assert list(posterior.mean) == ["steps", convention.name(mean_key), "plain.weight"]
    (log_var,) = posterior.log_var.values()
    np.testing.assert_allclose(np.exp(log_var.numpy() / 2), STD[convention.unit](scale), rtol=2e-6)
    written = arrays_from_posterior(posterior, convention, record)
    assert list(written) == list(record)
    for key, array in record.items():
        np.testing.assert_allclose(written[key].numpy(), array.numpy(), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("unit", STD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_units_are_stable_from_tiny_to_huge_scales(unit, dtype):
    convention = Convention("*m", "*s", unit)
    log_var = torch.linspace(-80, 80, 999, dtype=dtype)
    back = convention.to_log_var(convention.from_log_var(log_var))
    torch.testing.assert_close(back, log_var, rtol=1e-6, atol=1e-6)


def test_a_rho_far_below_zero_is_a_log_std():
    rho = torch.tensor([-300.0, -60.0, -20.0])
    torch.testing.assert_close(CONVENTIONS["blitz"].to_log_var(rho), 2 * rho)


def test_fedbary_names_are_the_posterior_s_own():
    ours, theirs = (
        Posterior.from_state_dict(state(0)),
        posterior_from_arrays(ArrayRecord(state(0)), FEDBARY),
    )
    for part in ("mean", "log_var"):
        assert list(getattr(ours, part)) == list(getattr(theirs, part))
        assert all(map(torch.equal, getattr(ours, part).values(), getattr(theirs, part).values()))


def test_names_that_collide_are_an_error():
    record = ArrayRecord({k: torch.zeros(1) for k in ("w", "w_mean", "w_log_var")})
    with pytest.raises(ValueError, match="two tensors of the state dict are named 'w'"):
        posterior_from_arrays(record, FEDBARY)


def test_a_posterior_without_an_asked_for_tensor_is_an_error():
    posterior = Posterior({"fc.weight": torch.zeros(2)}, {})
    with pytest.raises(ValueError, match="no Gaussian tensor 'fc.weight' for array"):
        like = ArrayRecord({k: torch.zeros(2) for k in NAMES["fedbary"]})
        arrays_from_posterior(posterior, FEDBARY, like)


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (("*_mean", "*_s", "var"), "unit"),
        (("mean", "scale", "std"), "mean"),
        (("*_mean", "*_s_*", "std"), "scale"),
        (("*_mean", "*_mean", "std"), "scale"),
    ],
)
def test_a_convention_without_sense_is_an_error(arguments, setting):
    refused(f"^{setting}: ", Convention, *arguments)


def test_an_unknown_convention_lists_the_names():
    refused("convention: 'x'.*fedbary, bayesian-torch", convention_named, "x")
    own = Convention("*.m", "*.s", "std")
    assert convention_named(own) is own


@pytest.mark.parametrize("name", CONVENTIONS)
def test_rklb_in_every_convention(name):
    convention = CONVENTIONS[name]
    mean_key, scale_key = NAMES[name]
    records = [
        ArrayRecord(
            {
                mean_key: torch.tensor([mean]),
                scale_key: convention.from_log_var(torch.tensor([math.log(var)])),
            }
        )
        for mean, var in ((0.0, 1.0), (2.0, 0.25))
    ]
    result = aggregate_records(rule_named("RKLB"), records, [1, 1], convention)
    assert result[mean_key].numpy() == pytest.approx(1.6, rel=1e-6)
    var = STD[convention.unit](result[scale_key].numpy().astype(float)) ** 2
    assert var == pytest.approx(0.4, rel=1e-6)


WORDS = st.text("ab._", max_size=4)


def keys_of(convention, words):
    patterns = (convention.mean, convention.scale)
    return [pattern.replace("*", word) for word in words for pattern in patterns]


@pytest.mark.parametrize("name", CONVENTIONS)
@given(words=st.lists(WORDS, min_size=1, max_size=3, unique=True), plain=WORDS)
def test_reading_and_writing_is_the_identity(name, words, plain):
    convention = CONVENTIONS[name]
    generator = torch.Generator().manual_seed(0)
    keys = [f"plain.{plain}", *keys_of(convention, words)]
    record = ArrayRecord({key: torch.rand(3, generator=generator) + 0.5 for key in keys})
    names = Names(keys, convention)
    read = names.read(record)
    posterior = posterior_from_arrays(record, convention)
    ours = Posterior.from_state_dict(dict(read))
    assert list(ours.mean) == list(posterior.mean)
    assert all(torch.equal(ours.log_var[n], posterior.log_var[n]) for n in posterior.log_var)
    of_group = {OWN + name: tensor for name, tensor in read.items()}
    written = names.write({**read, **of_group}, record, Blanks())
    assert list(written) == [*keys, *(OWN + key for key in keys)]
    for key in keys:
        assert torch.equal(*(tensor_from_array(written[k]) for k in (key, OWN + key)))
        there, back = tensor_from_array(record[key]), tensor_from_array(written[key])
        torch.testing.assert_close(back, there, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["w.m", "w.s", "w._mean"], "named 'w._mean'"),
        (["w.m", "w.s", "x_mean", "x_log_var"], "'x_mean' is Gaussian in fedbary's names alone"),
        (["w.m", "w.s", "x_log_var"], "x_log_var"),
        (["w.m", "w.s", "x.s"], "'x.s' is a scale without its mean 'x.m'"),
    ],
)
def test_names_that_would_mean_something_else_are_refused(keys, said):
    with pytest.raises(ValueError, match=said):
        Names(keys, Convention("*m", "*s", "log_var"))


def test_a_result_is_written_in_its_array_s_bytes():
    blanks = Blanks()
    here = blanks.empty(torch.empty(2, 500), torch.float64).fill_(3)
    place = here.data_ptr()
    tensors = {"here": here, "elsewhere": torch.ones(2), "part": here[:1]}
    del tensors["part"], here
    arrays = blanks.arrays(tensors)
    assert not tensors
    written = tensor_from_array(arrays["here"])
    assert written.data_ptr() == place and written.shape == (2, 500) and (written == 3).all()
    assert tensor_from_array(arrays["elsewhere"]).tolist() == [1, 1]


def test_a_view_of_a_blank_is_an_array_of_its_own():
    blanks = Blanks()
    whole = blanks.empty(torch.empty(2, 3), torch.float32)
    whole.copy_(torch.arange(6.0).reshape(2, 3))
    arrays = blanks.arrays({"part": whole[:1], "turned": whole.t()})
    assert tensor_from_array(arrays["part"]).tolist() == [[0, 1, 2]]
    assert tensor_from_array(arrays["turned"]).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("unit", ["log_var", "log_std", "std", "rho"])
def test_records_aggregate_into_their_own_unit_and_dtype(unit):
    convention = Convention("*.m", "*.s", unit)
    for dtype in (torch.float16, torch.float32, torch.float64):
        log_var = torch.tensor([-2.0, 0.0, 1.0], dtype=torch.float64)
        scale = convention.from_log_var(log_var).to(dtype)
        record = ArrayRecord({"w.s": scale, "w.m": torch.ones(3, dtype=dtype)})
        result = aggregate_records(RULES["RKLB"], [record, record], [1, 3], convention)
        assert list(result) == ["w.s", "w.m"]
        for key in record:
            there, back = tensor_from_array(record[key]), tensor_from_array(result[key])
            torch.testing.assert_close(back, there, rtol=2e-3 if dtype == torch.float16 else 1e-6,
                                       atol=2e-3 if dtype == torch.float16 else 1e-6)  # fmt: skip


@pytest.mark.parametrize("rule", ["RKLB", "FKLB", "TrimmedMean"])
def test_a_strategy_s_result_is_not_copied(rule, monkeypatch):
    copied = []
    filled = arrays.BlankArray.filled

    def watched(blank):
        place = blank.tensor.data_ptr()
        array = filled(blank)
        copied.append(tensor_from_array(array).data_ptr() != place)
        return array

    monkeypatch.setattr(arrays.BlankArray, "filled", watched)
    state = {"w_mean": torch.ones(9), "w_log_var": torch.zeros(9), "b": torch.ones(2, 2)}
    strategy_for(rule)().aggregate_train(1, [reply(k, state) for k in range(7)])
    assert copied == [False] * 3
