"""Scores of Gaussian predictions agree with other code and are proper."""

import math

import numpy as np
import pytest
import scoringrules
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from fedbary.predictive import Forecast
from fedbary.scores.regression import LEVELS, score

values = arrays(np.float64, 12, elements=st.floats(-50, 50))
variances = arrays(np.float64, 12, elements=st.floats(1e-3, 100))


def forecast(mean, var):
    mean, var = (torch.as_tensor(np.asarray(a), dtype=torch.float64) for a in (mean, var))
    return Forecast(mean, var / 3, 2 * var / 3)


@given(values, variances, values)
def test_nll_is_scipy_s_and_crps_is_that_of_scoringrules(mean, var, y):
    found = score(forecast(mean, var), torch.from_numpy(y))
    std = np.sqrt(var)
    assert found["nll"] == pytest.approx(-norm.logpdf(y, mean, std).mean())
    crps = scoringrules.crps_normal(y, mean, std).mean()
    assert found["crps"] == pytest.approx(crps, rel=1e-6, abs=1e-9)
    assert found["rmse"] == pytest.approx(math.sqrt(np.mean((y - mean) ** 2)), abs=1e-12)
    assert found["sharpness"] == pytest.approx(std.mean())


@given(values, variances, values, st.floats(0.01, 100), st.floats(-100, 100))
def test_units_scale_the_scores_that_have_one(mean, var, y, unit, origin):
    one = score(forecast(mean, var), torch.from_numpy(y))
    other = score(forecast(mean, var).rescaled(origin, unit), torch.from_numpy(origin + unit * y))
    for name in ("rmse", "sharpness", "crps"):
        assert other[name] == pytest.approx(unit * one[name], rel=1e-6, abs=1e-9 * (1 + unit))
    assert other["nll"] == pytest.approx(one["nll"] + math.log(unit), rel=1e-6, abs=1e-6)


def test_the_truth_is_covered_as_it_should_be_and_scores_best():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(200_000, generator=generator).double()
    std = 0.5 + torch.rand(200_000, generator=generator).double()
    y = mean + std * torch.randn(200_000, generator=generator).double()
    truth = score(forecast(mean, std**2), y)
    for level in LEVELS:
        assert truth[f"coverage_{level}"] == pytest.approx(level / 100, abs=0.005)
    for wrong in (
        forecast(mean, 1.2 * std**2),
        forecast(mean, std**2 / 1.2),
        forecast(mean + 0.1, std**2),
    ):
        found = score(wrong, y)
        assert found["nll"] > truth["nll"] and found["crps"] > truth["crps"]


def test_without_variance_the_crps_is_the_absolute_error_and_the_nll_infinite():
    found = score(forecast([1.0, 2.0], [0.0, 0.0]), torch.tensor([3.0, 2.5]))
    assert found["crps"] == pytest.approx(1.25) and found["nll"] == math.inf
    assert found["sharpness"] == 0 and found["coverage_95"] == 0


@pytest.mark.parametrize(
    ("mean", "var", "y"),
    [
        ([1.0], [1.0], [1.0, 2.0]),
        ([], [], []),
        ([math.nan], [1.0], [1.0]),
        ([1.0], [math.inf], [1.0]),
        ([1.0], [-1.0], [1.0]),
    ],
)
def test_no_forecast_is_refused(mean, var, y):
    with pytest.raises(ValueError, match="forecast"):
        score(forecast(mean, var), torch.tensor(y))
