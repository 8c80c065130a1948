"""Kept predictions are wrong no more often than was asked for, at the asked confidence."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from fedbary.errors import SettingError
from fedbary.predictive import Prediction
from fedbary.predictive.conformal import BINS, interval
from fedbary.predictive.risk import STARTS, certain, risk_histogram, uncertainty_bins


def predicted(seed, examples, spoilt=0.0):
    """Predictions as sure as the labels allow, but for a part of the labels, which is random."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(examples, 5, generator=generator).double()
    probs = logits.softmax(-1)
    y = torch.multinomial(probs, 1, generator=generator)[:, 0]
    random = torch.randint(5, (examples,), generator=generator)
    y = torch.where(torch.rand(examples, generator=generator) < spoilt, random, y)
    return Prediction(probs, torch.zeros(examples)), y


def part(prediction, index):
    return Prediction(prediction.probs[index], prediction.aleatoric[index])


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_the_sum_of_the_sites_histograms_is_that_of_all(seed, sites):
    prediction, y = predicted(seed, 300)
    at = torch.randint(sites, (300,), generator=torch.Generator().manual_seed(seed))
    parts = [risk_histogram(part(prediction, at == k), y[at == k]) for k in range(sites)]
    whole = risk_histogram(prediction, y)
    assert torch.equal(sum(parts), whole)
    assert int(whole[1].sum()) == int((prediction.probs.argmax(1) != y).sum())


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "spoilt"), [(0.05, 0.02), (0.05, 0.2), (0.1, 0.05)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_in_400_random_splits_of_one_score_set_the_error_holds_at_the_confidence(
    rate, spoilt, confidence
):
    """1,500 of 20,000 are held out; the error is that of what is kept of the others."""
    prediction, y = predicted(1, 20_000, spoilt)
    cells = np.flatnonzero(whole := risk_histogram(prediction, y).flatten().numpy())
    drawn = np.random.default_rng(2).multivariate_hypergeometric(whole[cells], 1500, size=400)
    failed = found = 0
    for counts in drawn:
        held = np.zeros_like(whole)
        held[cells] = counts
        held, others = (torch.from_numpy(part).view(2, BINS) for part in (held, whole - held))
        number = certain(held, rate, confidence).number
        kept, wrong = int(others[:, : number + 1].sum()), int(others[1, : number + 1].sum())
        found += number >= 0
        failed += wrong > rate * kept
    assert interval(failed, 400)[0] <= 1 - confidence
    assert found > 100 or spoilt > rate


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([0.02, 0.05, 0.2]), st.sampled_from([0.8, 0.95]))
def test_what_passes_has_an_exact_upper_bound_below_the_rate(seed, rate, confidence):
    prediction, y = predicted(seed, 2000)
    found = certain(risk_histogram(prediction, y), rate, confidence)
    if found.number < 0:
        return
    below = uncertainty_bins(prediction) <= found.number
    wrong = (prediction.probs.argmax(1) != y)[below]
    assert (found.kept, found.wrong) == (int(below.sum()), int(wrong.sum()))
    level = 1 - (1 - confidence) / STARTS
    bound = beta.ppf(level, found.wrong + 1, found.kept - found.wrong)
    assert bound <= rate + 1e-9


def test_where_too_few_are_held_out_it_is_said_how_many_it_would_take():
    prediction, y = predicted(3, 100_000)
    few = slice(150)
    found = certain(risk_histogram(part(prediction, few), y[few]), 0.02, 0.95)
    assert found.number == -1 and 150 < found.needed < 100_000
    more = slice(3 * found.needed)
    assert certain(risk_histogram(part(prediction, more), y[more]), 0.02, 0.95).number >= 0


def test_where_sure_predictions_are_wrong_no_number_of_examples_does():
    counts = torch.zeros(2, BINS, dtype=torch.int64)
    counts[1, 100] = 50
    assert certain(counts, 0.1, 0.95).needed == 0
    assert certain(torch.zeros_like(counts), 0.1, 0.95).needed == 0


def test_entropies_of_sure_and_of_unsure_predictions_lie_in_the_first_and_the_last_bin():
    probs = torch.tensor([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.9, 0.05, 0.05]])
    bins = uncertainty_bins(Prediction(probs, torch.zeros(3)))
    assert bins[0] == 0 and bins[1] >= BINS - 10 and bins[0] < bins[2] < bins[1]


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, np.nan])
@pytest.mark.parametrize("name", ["error_rate", "confidence"])
def test_rates_lie_between_0_and_1(name, bad):
    numbers = {"error_rate": 0.05, "confidence": 0.95, name: bad}
    with pytest.raises(SettingError, match=name):
        certain(torch.zeros(2, BINS, dtype=torch.int64), **numbers)
