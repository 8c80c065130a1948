import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from strategies_replies import raw, state

from fedbary.aggregation import RULES, aggregate, rule_named
from fedbary.aggregation.limits import LOG_VAR_LIMIT
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


def big_state(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return state(seed) | {
        "big_log_var": torch.randn(3, 100_001, generator=generator) * 4 - 5,
        "big_mean": torch.randn(3, 100_001, generator=generator),
        "f16_mean": torch.randn(5, generator=generator).half(),
        "f16_log_var": torch.randn(5, generator=generator).half(),
        "f64_mean": torch.randn(5, generator=generator).double(),
        "f64_log_var": torch.randn(5, generator=generator).double() * 9,
        "empty": torch.empty(0, 2),
        "mask": torch.tensor([seed == 0, True]),
    }


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("clients", [1, 3, 40])
@pytest.mark.parametrize("rule", RULES)
def test_records_aggregate_as_posteriors_do(rule, clients, threads):
    size = slice(None) if clients < 40 else slice(-6, None)
    states = [dict(list(big_state(k).items())[size]) for k in range(clients)]
    weights = [1.0 + k for k in range(clients)]
    records = [ArrayRecord(s) for s in states]
    before = [raw(record) for record in records]
    torch.set_num_threads(threads)
    try:
        result = aggregate_records(rule_named(rule), records, weights, FEDBARY)
    finally:
        torch.set_num_threads(1)
    expected = aggregate(rule, map(Posterior.from_state_dict, states), weights).state_dict()
    assert list(result) == list(states[0])
    for key, array in result.items():
        tensor = torch.from_numpy(array.numpy())
        torch.testing.assert_close(tensor, expected[key], rtol=2e-6, atol=3e-6, msg=key)
    assert [raw(record) for record in records] == before


def test_torch_keeps_its_number_of_threads():
    torch.set_num_threads(2)
    try:
        aggregate_records(rule_named("EAA"), [ArrayRecord(state(0))], [1], FEDBARY)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_pieces_on_threads_give_the_bytes_of_one_thread():
    records = [ArrayRecord(big_state(k)) for k in range(3)]
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(raw(aggregate_records(rule_named("RKLB"), records, [1, 2, 3], FEDBARY)))
    torch.set_num_threads(1)
    assert results[0] == results[1]


def test_fortran_order_and_key_order_of_a_client_do_not_matter():
    records = [ArrayRecord(state(k)) for k in range(2)]
    expected = aggregate_records(rule_named("WB"), records, [1, 1], FEDBARY)
    turned = ArrayRecord(
        {
            key: Array(np.asfortranarray(records[1][key].numpy()))
            for key in reversed(list(records[1]))
        }
    )
    result = aggregate_records(rule_named("WB"), [records[0], turned], [1, 1], FEDBARY)
    assert raw(result) == raw(expected)


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


def test_a_sampler_s_duplicates_stay_equal_to_blitz_s_parameters():
    def linear(seed):
        generator = torch.Generator().manual_seed(seed)
        mu, rho = torch.randn(2, 3, generator=generator), torch.randn(2, 3, generator=generator)
        return {
            "weight_mu": mu,
            "weight_rho": rho,
            "weight_sampler.mu": mu,
            "weight_sampler.rho": rho,
            "weight_sampler.eps_w": torch.randn(2, 3, generator=generator),
        }

    records = [ArrayRecord(linear(k)) for k in range(3)]
    result = aggregate_records(rule_named("RKLB"), records, [1, 2, 3], CONVENTIONS["blitz"])
    plain = aggregate_records(rule_named("FedAvg"), records, [1, 2, 3], CONVENTIONS["fedbary"])
    for part in ("mu", "rho"):
        assert result[f"weight_{part}"].data == result[f"weight_sampler.{part}"].data
        assert result[f"weight_{part}"].data != plain[f"weight_{part}"].data


def test_a_model_of_bayesian_torch_federates():
    with warnings.catch_warnings():  # its import of torch.quantization is deprecated
        warnings.simplefilter("ignore")
        layers = pytest.importorskip("bayesian_torch.layers")
        models = [
            torch.nn.Sequential(
                layers.Conv2dReparameterization(1, 2, 3), layers.LinearFlipout(4, 2)
            )
            for _ in range(2)
        ]
    convention = CONVENTIONS["bayesian-torch"]
    records = [ArrayRecord(model.state_dict()) for model in models]
    result = aggregate_records(rule_named("EAA"), records, [1, 1], convention)
    models[0].load_state_dict(result.to_torch_state_dict())
    assert len(convention.pairs(result.keys())) == 4
    rhos = [record["0.rho_kernel"].numpy().astype(float) for record in records]
    var = sum(np.log1p(np.exp(rho)) ** 2 for rho in rhos) / 2
    got = models[0][0].rho_kernel.detach().double().numpy()
    np.testing.assert_allclose(np.log1p(np.exp(got)) ** 2, var, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_variances_stay_within_what_is_admitted_however_many_the_rounds(rule):
    """GAA alone would divide them by ten a round, and clients that keep them would be refused."""
    fedbary = convention_named("fedbary")
    held = ArrayRecord(
        {"w_mean": Array(np.ones(3, np.float32)), "w_log_var": Array(np.full(3, -8, np.float32))}
    )
    for _ in range(50):
        held = aggregate_records(rule_named(rule), [held] * 10, [1.0] * 10, fedbary)
    log_var = held["w_log_var"].numpy()
    assert np.isfinite(log_var).all() and (abs(log_var) <= LOG_VAR_LIMIT).all()
