"""Who is left to a person, against a search of every threshold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.errors import SettingError
from fedbary.predictive import Prediction
from fedbary.trained.judgement import referral

cases = st.lists(
    st.tuples(st.sampled_from([0.5, 0.6, 0.7, 0.8, 0.9, 0.99]), st.booleans()),
    min_size=1,
    max_size=40,
)


def predicted(sure):
    probs = torch.tensor([[p, 1 - p] for p, _ in sure], dtype=torch.float64)
    labels = torch.tensor([0 if right else 1 for _, right in sure])
    return Prediction(probs, torch.zeros(len(sure))), labels


@given(sure=cases, rate=st.sampled_from([0.0, 0.05, 0.2, 0.5]))
def test_it_keeps_as_many_as_the_error_rate_allows_and_no_threshold_keeps_more(sure, rate):
    prediction, labels = predicted(sure)
    chosen = referral(prediction, labels, rate)
    kept = ~chosen.to_person(prediction)
    wrong = (prediction.probs.argmax(1) != labels).numpy()
    assert kept.mean() == pytest.approx(chosen.kept)
    if kept.any():
        assert wrong[kept].mean() == pytest.approx(chosen.error)
        assert chosen.error <= rate
        assert chosen.error <= chosen.bound <= 1
    else:
        assert math.isnan(chosen.error)
    entropy = prediction.entropy.numpy()
    for threshold in np.unique(entropy):
        below = entropy <= threshold
        assert below.sum() <= kept.sum() or wrong[below].mean() > rate


def test_the_bound_covers_the_true_error():
    """Clopper-Pearson of k errors of n solves P(X ≤ k | n, bound) = 5 %."""
    from scipy.stats import binom

    prediction, labels = predicted([(0.99, True)] * 97 + [(0.99, False)] * 3)
    chosen = referral(prediction, labels, 0.03)
    assert binom.cdf(3, 100, chosen.bound) == pytest.approx(0.05)


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_an_error_rate_is_a_part(rate):
    with pytest.raises(SettingError, match="from 0 to below 1"):
        referral(*predicted([(0.9, True)]), rate)
