"""The linear model without a setting is scikit-learn's, its penalty by leave-one-out."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge, RidgeCV

from fedbary.scores.ridge import PENALTIES, discriminant, ridge


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


@pytest.mark.parametrize(("examples", "columns"), [(40, 3), (15, 30)])
def test_what_is_left_out_is_answered_by_the_model_of_the_others(examples, columns):
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(examples, columns)), draw.normal(size=(examples, 2))
    alpha = RidgeCV(penalties(x)).fit(x, y).alpha_
    others = [np.arange(examples) != row for row in range(examples)]
    expected = [Ridge(alpha).fit(x[m], y[m]).predict(x[~m])[0] for m in others]
    found = ridge(torch.from_numpy(x), torch.from_numpy(y))
    np.testing.assert_allclose(found.left_out, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_discriminant_is_scikit_learn_s(seed):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, 120)
    x = draw.normal(size=(120, 3)) + draw.normal(size=(3, 3))[labels]
    found = discriminant(torch.from_numpy(x), torch.from_numpy(labels))
    by = LinearDiscriminantAnalysis(solver="lsqr").fit(x, labels)
    expected, scores = by.decision_function(x), found.left_out.numpy()
    differences = [part - part[:, :1] for part in (expected, scores)]
    np.testing.assert_allclose(*differences, rtol=1e-6, atol=1e-8)


def test_a_class_between_two_others_is_found_and_one_without_examples_is_not():
    x = torch.linspace(-1, 1, 90)[:, None]
    labels = torch.arange(3).repeat_interleave(30)
    by = ridge(x, torch.eye(4)[labels]).left_out
    assert (by.argmax(1) == labels).float().mean() < 0.8
    found = discriminant(by, labels).left_out
    assert (found.argmax(1) == labels).float().mean() > 0.95
    assert found[:, 3].eq(-torch.inf).all() and found[:, :3].isfinite().all()


def penalties(x):
    """Return the penalties in the unit of scikit-learn's."""
    largest = np.linalg.svd(x - x.mean(0))[1][0] ** 2
    return [largest * part for part in PENALTIES]


def test_columns_that_do_not_vary_say_nothing():
    found = ridge(torch.ones(5, 3), torch.arange(5.0)[:, None])
    assert not found.weight.any() and found.bias == 2
    assert found.left_out.flatten().tolist() == [2.5, 2.25, 2, 1.75, 1.5]


@pytest.mark.parametrize("examples", [1, 2, 3])
def test_few_examples_have_a_finite_model(examples):
    x = torch.randn(examples, 4, generator=torch.Generator().manual_seed(0))
    found = ridge(x, x[:, :1])
    assert all(part.isfinite().all() for part in (found.weight, found.bias, found.left_out))
