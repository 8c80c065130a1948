"""Clients' sums give the pooled statistics, wherever the columns lie."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbary.data.standardise import Sums
from fedbary.predictive import Forecast
from fedbary.predictive.regression import RegressionStandardiser

cuts = st.lists(st.integers(0, 40), max_size=5).map(sorted)


def pooled(shards, shift=None):
    total = Sums.of(shards[0], shift)
    for shard in shards[1:]:
        total = total + Sums.of(shard, shift)
    return total


def two_queries(shards):
    return pooled(shards, pooled(shards).mean)


@given(arrays(np.int32, (40, 3), elements=st.integers(-(2**20), 2**20)), cuts)
def test_sums_of_whole_numbers_are_exactly_the_pooled_ones(values, at):
    whole = torch.from_numpy(values).double()
    of_clients, of_all = pooled(list(whole.tensor_split(at))), Sums.of(whole)
    assert of_clients.count == of_all.count
    for part in ("total", "squares", "mean", "var"):
        assert torch.equal(getattr(of_clients, part), getattr(of_all, part))


@given(
    arrays(np.float64, (40, 2), elements=st.floats(-10, 10, width=32)), cuts, st.floats(-1e9, 1e9)
)
def test_two_queries_give_the_two_pass_statistics_at_any_offset(values, at, offset):
    columns = torch.from_numpy(values + offset)
    sums = two_queries(list(columns.tensor_split(at)))
    deviations = columns - columns.mean(0)
    scale = 1e-15 * (1 + abs(offset))
    torch.testing.assert_close(sums.mean, columns.mean(0), rtol=0, atol=100 * scale)
    expected = deviations.square().mean(0)
    torch.testing.assert_close(sums.var, expected, rtol=1e-9, atol=(100 * scale) ** 2)


def test_years_lose_nothing_where_plain_squares_would():
    years = 1e8 + torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)).double()
    expected = years.var(0, correction=0)
    assert (Sums.of(years).var / expected - 1).abs() > 0.01
    torch.testing.assert_close(two_queries(years.split(100)).var, expected, rtol=1e-12, atol=0)


def test_different_shifts_do_not_add():
    rows = torch.ones(2, 1)
    with pytest.raises(ValueError, match="shifts"):
        Sums.of(rows) + Sums.of(rows, torch.ones(1))


def test_standardised_columns_have_mean_0_and_variance_1_and_forecasts_come_back():
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(500, 4, generator=generator).double() * 3 + 2000
    standardiser = RegressionStandardiser.from_sums(two_queries(columns.split(50)))
    x, y = standardiser.features(columns[:, :3]), standardiser.target(columns[:, 3])
    assert x.dtype == y.dtype == torch.float32
    both = torch.cat([x, y[:, None]], 1).double()
    torch.testing.assert_close(both.mean(0), torch.zeros(4).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(both.var(0, correction=0), torch.ones(4).double(), rtol=1e-5, atol=0)
    ones = torch.ones(500).double()
    restored = standardiser.restore(Forecast(y.double(), 0.25 * ones, 0.75 * ones))
    torch.testing.assert_close(restored.mean, columns[:, 3], rtol=1e-6, atol=0)
    std = standardiser.std[3]
    torch.testing.assert_close(restored.var.sqrt(), std * ones)
    torch.testing.assert_close(restored.epistemic, 0.25 * std**2 * ones)


@pytest.mark.parametrize("constant", [0.0, 0.1, 288.15, 1e9 / 3, -1e-7])
def test_a_column_without_spread_is_0_for_every_row_also_for_a_new_one(constant):
    columns = torch.stack([torch.full((1000,), constant).double(), torch.arange(1000.0)], 1)
    standardiser = RegressionStandardiser.from_sums(two_queries(columns.split(7)))
    new = torch.tensor([[constant + 300.0], [constant - 1e9]]).double()
    assert not standardiser.features(torch.cat([columns[:, :1], new])).any()


def test_a_column_that_no_site_fills_is_0_and_a_target_without_spread_comes_back():
    columns = torch.tensor([[torch.nan, 1.0, 5.0], [torch.nan, 2.0, 5.0]]).double()
    sums = Sums.of(columns, missing=True)
    scale = RegressionStandardiser.from_sums(sums)
    by = RegressionStandardiser(scale.mean, scale.std, sums.mean[:2])
    x = torch.tensor([[torch.nan, 1.0], [3.0, 2.0]]).double()
    assert by.features(x).tolist() == [[0, -1], [0, 1]]
    ones = torch.ones(2).double()
    restored = by.restore(Forecast(by.target(columns[:, 2]).double(), ones, ones))
    assert restored.mean.tolist() == [5, 5] and restored.epistemic.tolist() == [1, 1]
