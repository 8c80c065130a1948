"""Arrays are read and written as they are, and posteriors by every convention's names."""

import math
import warnings

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from strategies_replies import state

from fedbary.aggregation import rule_named
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from strategies import (
    CONVENTIONS,
    Convention,
    aggregate_records,
    arrays_from_posterior,
    posterior_from_arrays,
)
from strategies.arrays import BlankArray, array_from_tensor, tensor_from_array
from strategies.conventions import convention_named

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


def test_a_scale_without_its_mean_is_an_error():
    with pytest.raises(ValueError, match="'w_log_var' is a scale without its mean 'w_mean'"):
        posterior_from_arrays(ArrayRecord({"w_log_var": torch.zeros(1)}), FEDBARY)


def test_names_that_collide_are_an_error():
    record = ArrayRecord({k: torch.zeros(1) for k in ("w", "w_mean", "w_log_var")})
    with pytest.raises(ValueError, match="two tensors of the record are named 'w'"):
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
    with pytest.raises(SettingError, match=f"^{setting}: "):
        Convention(*arguments)


def test_an_unknown_convention_lists_the_names():
    with pytest.raises(SettingError, match="convention: 'x'.*fedbary, bayesian-torch"):
        convention_named("x")
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
