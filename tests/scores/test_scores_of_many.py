"""Scores of pixels and of several labels an example, against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, jaccard_score, roc_auc_score

from fedbary.scores.multilabel import macro_auroc, macro_f1
from fedbary.scores.segmentation import mean_iou

seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@settings(deadline=None, max_examples=40)
@given(seeds, st.integers(2, 5), st.integers(1, 4), st.floats(0, 1))
def test_the_mean_iou_is_scikit_learn_s_over_classes_that_are_there(rng, classes, n, right):
    labels = rng.integers(0, rng.integers(1, classes + 1), (n, 3, 4))
    found = np.where(rng.random(labels.shape) < right, labels, rng.integers(0, classes, (n, 3, 4)))
    flat = labels.ravel(), found.ravel()
    there = np.union1d(*flat)
    expected = jaccard_score(*flat, labels=there, average="macro", zero_division=0)
    assert mean_iou(torch.tensor(found), torch.tensor(labels), classes) == pytest.approx(expected)
    assert mean_iou(torch.tensor(labels), torch.tensor(labels), classes) == 1


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(seeds, st.integers(1, 4), st.integers(1, 12), st.floats(0, 1))
def test_f1_and_auroc_are_scikit_learn_s_over_labels_that_have_them(rng, labels, n, share):
    y, probs = (rng.random((n, labels)) < share).astype(int), rng.integers(0, 5, (n, labels)) / 4
    found = (probs > 0.5).astype(int)
    each = [f1_score(y[:, k], found[:, k], zero_division=np.nan) for k in range(labels)]
    told = [
        f for f, k in zip(each, range(labels), strict=True) if y[:, k].any() or found[:, k].any()
    ]
    result = macro_f1(torch.tensor(found), torch.tensor(y))
    assert result == pytest.approx(np.mean(told)) if told else math.isnan(result)
    both = [k for k in range(labels) if 0 < y[:, k].sum() < n]
    result = macro_auroc(torch.tensor(probs), torch.tensor(y))
    if both:
        assert result == pytest.approx(np.mean([roc_auc_score(y[:, k], probs[:, k]) for k in both]))
    else:
        assert math.isnan(result)
