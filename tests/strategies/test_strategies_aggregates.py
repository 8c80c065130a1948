"""Records aggregate as posteriors do, in every convention, whatever the threads and the order."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from strategies_replies import raw, state

from fedbary.aggregation import RULES, aggregate, rule_named
from fedbary.aggregation.sums import LOG_VAR_LIMIT
from fedbary.gaussian import Posterior
from fedbary.strategies import CONVENTIONS, aggregate_records
from fedbary.strategies.conventions import convention_named

FEDBARY = CONVENTIONS["fedbary"]


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


@pytest.mark.in_turn
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
