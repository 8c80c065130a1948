"""The linear model without a setting is scikit-learn's, its penalty by leave-one-out."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeCV

from fedbary.scores.ridge import PENALTIES, ridge


@pytest.mark.parametrize(("examples", "columns"), [(60, 5), (20, 40), (30, 30)])
@pytest.mark.parametrize("seed", range(4))
def test_weights_are_those_of_the_penalty_that_leave_one_out_takes(examples, columns, seed):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(examples, columns)) * draw.gamma(1, 3, columns) + 7
    y = x @ draw.normal(size=(columns, 3)) + draw.normal(size=(examples, 3)) * 10**seed
    by = RidgeCV(penalties(x)).fit(x, y)
    found = ridge(torch.from_numpy(x), torch.from_numpy(y))
    expected = Ridge(by.alpha_).fit(x, y)
    np.testing.assert_allclose(found.weight.T, expected.coef_, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(found.bias, expected.intercept_, rtol=1e-5, atol=1e-5)


def test_many_classes_are_taken_as_numbers():
    draw = np.random.default_rng(0)
    x, labels = draw.normal(size=(200, 12)), draw.integers(0, 4, 200)
    by = RidgeCV(penalties(x)).fit(x, np.eye(4)[labels])
    found = ridge(torch.from_numpy(x), torch.eye(4)[torch.from_numpy(labels)])
    np.testing.assert_allclose(
        x @ found.weight.numpy() + found.bias.numpy(), by.predict(x), atol=1e-9
    )


def penalties(x):
    """Return the penalties in the unit of scikit-learn's."""
    largest = np.linalg.svd(x - x.mean(0))[1][0] ** 2
    return [largest * part for part in PENALTIES]


def test_columns_that_do_not_vary_say_nothing():
    found = ridge(torch.ones(5, 3), torch.arange(5.0)[:, None])
    assert not found.weight.any() and found.bias == 2


@pytest.mark.parametrize("examples", [1, 2, 3])
def test_few_examples_have_a_finite_model(examples):
    x = torch.randn(examples, 4, generator=torch.Generator().manual_seed(0))
    found = ridge(x, x[:, :1])
    assert all(part.isfinite().all() for part in (found.weight, found.bias))
