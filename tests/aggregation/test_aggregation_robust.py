"""Robust rules and the bound on precisions: what hostile clients can do to them, and what not."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from aggregation_formulas import gaussian, moments
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp.strategy.multikrum import select_multikrum
from hypothesis import given
from hypothesis import strategies as st

from fedbary.aggregation import RULES, SelectionRule, aggregate
from fedbary.aggregation.sums import PIECE
from fedbary.aggregation.tensors import bound_precisions
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior, wasserstein2_squared
from fedbary.strategies import CONVENTIONS, aggregate_records

CHARTS = ["RKLB", "WB", "EAA", "GAA", "AALV", "FKLB"]


@st.composite
def crowds(draw, most_hostile):
    """Draw means and log-variances of honest clients and of fewer hostile ones, in any order."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    clients = draw(st.integers(3, 12))
    hostile = draw(st.integers(0, most_hostile(clients)))
    m, lv = rng.standard_normal((clients, 5)), rng.uniform(-8, -6, (clients, 5))
    m[:hostile] = draw(st.sampled_from([1e-3, 1.0, -1e6])) * rng.standard_normal(5)
    lv[:hostile] = draw(st.sampled_from([-40.0, -7.0, 40.0]))
    order = rng.permutation(clients)
    return m[order], lv[order], hostile, order >= hostile


def run(rule, m, lv, max_precision_ratio=None):
    clients = [gaussian(a, b, torch.float64) for a, b in zip(m, lv, strict=True)]
    return moments(aggregate(rule, clients, [1.0] * len(clients), max_precision_ratio))


def within(values, honest):
    slack = 1e-12 * np.abs(honest).max()
    return (values >= honest.min(0) - slack).all() and (values <= honest.max(0) + slack).all()


@given(crowd=crowds(most_hostile=lambda clients: (clients - 1) // 2))
def test_the_median_stays_among_the_honest_while_less_than_half_are_hostile(crowd):
    m, lv, _, honest = crowd
    mean, log_var = run("Median", m, lv)
    assert within(mean, m[honest]) and within(log_var, lv[honest])


@given(crowd=crowds(most_hostile=lambda clients: 3 * clients // 10))
def test_the_trimmed_mean_stays_among_the_honest_while_no_more_than_assumed_are_hostile(crowd):
    m, lv, _, honest = crowd
    mean, log_var = run(replace(RULES["TrimmedMean"], trim_fraction=0.3), m, lv)
    assert within(mean, m[honest]) and within(log_var, lv[honest])


@pytest.mark.parametrize("rule", CHARTS)
def test_no_plain_rule_bears_a_single_hostile_mean(rule):
    m, lv = np.zeros((9, 1)), np.full((9, 1), -7.0)
    m[0] = 1e6
    assert run(rule, m, lv)[0] > 1e5


@given(crowd=crowds(most_hostile=lambda clients: max(0, (clients - 3) // 2)))
def test_multi_krum_selects_as_flower_does_on_flattened_vectors(crowd):
    m, lv, hostile, _ = crowd
    points = np.concatenate([m, np.exp(lv / 2)], axis=1)
    contents = [RecordDict({"arrays": ArrayRecord({"p": Array(point)})}) for point in points]
    chosen = select_multikrum(contents, hostile, len(m) - hostile)
    kept = {content["arrays"]["p"].data for content in chosen}
    clients = [gaussian(a, b, torch.float64) for a, b in zip(m, lv, strict=True)]
    distances = [[wasserstein2_squared(p, q) for q in clients] for p in clients]
    ours = RULES["MultiKrum"].select(torch.tensor(distances, dtype=torch.float64), hostile)
    assert {contents[k]["arrays"]["p"].data for k in ours} == kept


def test_multi_krum_measures_the_wasserstein_distance_over_all_tensors_and_pieces():
    seen = []

    def select(squared_distances, hostile):
        seen.append(squared_distances)
        return [1, 2]

    def client(seed):
        draw = torch.Generator().manual_seed(seed)
        mean = {
            "big": torch.randn(PIECE + 7, generator=draw),
            "steps": torch.tensor(seed),
            "plain": torch.randn(3, 2, generator=draw),
        }
        return Posterior(mean, {"big": torch.randn(PIECE + 7, generator=draw)})

    clients = [client(seed) for seed in range(4)]
    expected = [[wasserstein2_squared(p, q) for q in clients] for p in clients]
    rule = SelectionRule("Pair", select)
    result = aggregate(rule, clients, [1, 2, 3, 4])
    for key, tensor in aggregate("WB", clients[1:3], [1, 1]).state_dict().items():
        if key != "steps":
            torch.testing.assert_close(result.state_dict()[key], tensor)
    records = [ArrayRecord(dict(c.state_dict())) for c in clients]
    aggregate_records(rule, records, [1, 2, 3, 4], CONVENTIONS["fedbary"])
    for distances in seen:
        np.testing.assert_allclose(distances, expected, rtol=1e-5)
    assert len(seen) == 2


@pytest.mark.parametrize(("clients", "needed"), [(4, 5), (2, None), (7, None)])
def test_multi_krum_says_how_many_clients_it_needs(clients, needed):
    rule = replace(RULES["MultiKrum"], trim_fraction=0.3)
    posteriors = [gaussian([float(k)], [0.0]) for k in range(clients)]
    if needed is None:
        assert aggregate(rule, posteriors, [1] * clients)
    else:
        with pytest.raises(SettingError, match=f"posteriors: 4; expected {needed} or more"):
            aggregate(rule, posteriors, [1] * clients)


@pytest.mark.parametrize("trim_fraction", [-0.1, 0.5, math.nan])
def test_a_rule_bears_less_than_half(trim_fraction):
    with pytest.raises(SettingError, match="trim_fraction: .*from 0 to below 0.5"):
        replace(RULES["TrimmedMean"], trim_fraction=trim_fraction)


@pytest.mark.parametrize(
    ("fraction", "clients", "hostile"),
    [(0.3, 10, 3), (0.29, 100, 29), (0.2, 4, 0), (0.49, 3, 1), (0.49999999995, 10, 4)],
)
def test_the_number_of_hostile_clients_is_rounded_down(fraction, clients, hostile):
    assert replace(RULES["Median"], trim_fraction=fraction).num_hostile(clients) == hostile


@pytest.mark.parametrize("rule", ["Median", "TrimmedMean", "MultiKrum"])
def test_a_robust_rule_does_not_heed_the_weights_that_clients_claim(rule):
    rng = np.random.default_rng(0)
    clients = [gaussian(rng.standard_normal(4), rng.uniform(-8, -6, 4)) for _ in range(7)]
    equal = aggregate(rule, clients, [1] * 7).state_dict()
    claimed = aggregate(rule, clients, [1e9, *[1] * 6]).state_dict()
    assert all(torch.equal(equal[key], claimed[key]) for key in equal)


ratios = st.floats(1, 100)


@given(crowd=crowds(most_hostile=lambda clients: (clients - 1) // 2), ratio=ratios)
def test_no_precision_exceeds_the_ratio_and_what_is_within_it_is_left_alone(crowd, ratio):
    _, lv, _, honest = crowd
    bounded = bound_precisions(torch.from_numpy(lv), ratio).numpy()
    excess = np.median(lv, axis=0) - lv
    within = excess <= math.log(ratio)
    np.testing.assert_array_equal(bounded[within], lv[within])
    cut = (np.median(lv, axis=0) - bounded)[~within]
    np.testing.assert_allclose(cut, math.log(ratio), atol=1e-13)  # the rounding of log-variances
    largest = np.exp(-lv[honest]).max(0)
    assert (np.exp(-bounded) <= ratio * largest * (1 + 1e-9)).all()


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_bound_that_no_client_exceeds_changes_nothing(rule):
    rng = np.random.default_rng(1)
    m, lv = rng.standard_normal((6, 9)), rng.uniform(-8, -7, (6, 9))
    for one, other in zip(run(rule, m, lv), run(rule, m, lv, math.e), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-15)


def test_a_client_of_tiny_variances_owns_the_rklb_unless_precisions_are_bounded():
    m, lv = np.zeros((10, 1)), np.full((10, 1), -7.0)
    m[3], lv[3] = 1.0, -40.0
    assert run("RKLB", m, lv)[0] == pytest.approx(1)
    for ratio in (1, 2, 10):
        assert run("RKLB", m, lv, ratio)[0] == pytest.approx(ratio / (ratio + 9))


@pytest.mark.parametrize("ratio", [0, 0.99, -1, math.inf, math.nan])
def test_a_ratio_below_one_is_an_error(ratio):
    with pytest.raises(SettingError, match="max_precision_ratio: .*1 or more"):
        aggregate("RKLB", [gaussian([0.0], [0.0])], [1], ratio)


@pytest.mark.in_turn
@pytest.mark.parametrize("unit", ["log_var", "log_std", "std", "rho"])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_bounded_records_aggregate_as_bounded_posteriors_do(rule, unit):
    convention = replace(CONVENTIONS["scale"], unit=unit)
    rng = np.random.default_rng(2)
    m = rng.standard_normal((7, 30)).astype(np.float32)
    lv = rng.uniform(-9, -5, (7, 30)).astype(np.float32)
    clients = [gaussian(a, b) for a, b in zip(m, lv, strict=True)]
    scales = [convention.from_log_var(torch.from_numpy(row)) for row in lv]
    records = [
        ArrayRecord({"w.loc": Array(mean), "w.scale": Array(scale.numpy())})
        for mean, scale in zip(m, scales, strict=True)
    ]
    weights = [1.0, 2, 3, 4, 3, 2, 1]
    expected = aggregate(RULES[rule], clients, weights, 1.5)
    result = aggregate_records(RULES[rule], records, weights, convention, 1.5)
    unbounded = aggregate_records(RULES[rule], records, weights, convention)
    log_var = convention.to_log_var(torch.from_numpy(result["w.scale"].numpy()))
    torch.testing.assert_close(log_var, expected.log_var["w"], rtol=1e-5, atol=1e-5)
    mean = torch.from_numpy(result["w.loc"].numpy())
    torch.testing.assert_close(mean, expected.mean["w"], rtol=1e-5, atol=1e-5)
    changed = result["w.scale"].data != unbounded["w.scale"].data
    assert changed == (rule != "Median")  # whose scales the bound never reaches


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["Median", "TrimmedMean", "MultiKrum"])
def test_many_clients_are_stacked_in_smaller_pieces(rule):
    clients, generator = 40, torch.Generator().manual_seed(0)
    m = torch.randn(clients, PIECE, generator=generator)
    posteriors = [Posterior({"w": row}, {}) for row in m]
    whole = aggregate(rule, posteriors, [1] * clients).mean["w"]
    part = slice(PIECE // 2, PIECE // 2 + 100)
    if rule != "MultiKrum":
        alone = aggregate(rule, [Posterior({"w": row[part]}, {}) for row in m], [1] * clients)
        torch.testing.assert_close(whole[part], alone.mean["w"], rtol=0, atol=0)
    records = [ArrayRecord({"w": Array(row.numpy())}) for row in m]
    result = aggregate_records(RULES[rule], records, [1] * clients, CONVENTIONS["fedbary"])
    torch.testing.assert_close(torch.from_numpy(result["w"].numpy()), whole, rtol=1e-5, atol=1e-6)
