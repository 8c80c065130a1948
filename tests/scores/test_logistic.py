"""Logistic regression is scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fedbary.scores.logistic import logistic


@pytest.mark.parametrize(("examples", "columns"), [(150, 4), (40, 60)])
@pytest.mark.parametrize("classes", [2, 4])
def test_it_is_that_of_a_unit_penalty(examples, columns, classes):
    draw = np.random.default_rng(columns)
    labels = draw.integers(0, classes, examples)
    x = draw.normal(size=(examples, columns)) + draw.normal(size=(classes, columns))[labels] + 7
    found = logistic(torch.from_numpy(x), torch.from_numpy(labels), classes)
    answers = (torch.from_numpy(x) @ found.weight + found.bias).softmax(1).numpy()
    # scikit-learn has one vector of weights for two classes: of a penalty halved over two
    by = LogisticRegression(C=1 if classes > 2 else 2, max_iter=1000).fit(x, labels)
    assert np.abs(answers - by.predict_proba(x)).max() < 0.02


def test_a_class_between_two_others_is_found_and_one_without_examples_is_not():
    x, labels = torch.linspace(-9, 9, 90)[:, None], torch.arange(3).repeat_interleave(30)
    found = logistic(x, labels, 4)
    assert ((x.double() @ found.weight + found.bias).argmax(1) == labels).double().mean() > 0.95


def test_columns_that_do_not_vary_leave_the_classes_shares():
    found = logistic(torch.ones(4, 3), torch.tensor([0, 1, 1, 1]), 2)
    assert not found.weight.any()
    assert (found.bias.softmax(0) - torch.tensor([0.25, 0.75])).abs().max() < 0.01
