"""Sets of classes hold the true one at the chosen rate, from histograms that sites add up."""

import math

import numpy as np
import pytest
import torch
from conformal_by_hand import (
    SCORES,
    held_out_histogram,
    predicted,
    quantile_by_hand,
    scores_by_hand,
)
from hypothesis import given
from hypothesis import strategies as st

from fedbary.errors import SettingError
from fedbary.predictive import Forecast
from fedbary.predictive.conformal import (
    BINS,
    HeldOut,
    Thresholds,
    believed,
    class_bins,
    examples_needed,
    interval,
    threshold,
    upper_edge,
)
from fedbary.scores.coverage import coverage

seeds = st.integers(0, 10**6)


@pytest.mark.parametrize("score", SCORES)
def test_each_class_is_in_the_bin_of_its_score(score):
    probs, _ = predicted(0, 60)
    by_hand, bins = scores_by_hand(score, probs), class_bins(score, probs)
    highs = np.vectorize(upper_edge)(bins.numpy())
    lows = np.vectorize(lambda b: upper_edge(b - 1) if b else 0.0)(bins.numpy())
    assert (by_hand <= highs + 1e-6).all() and (by_hand >= lows - 1e-6).all()


@given(seeds, st.sampled_from(SCORES), st.booleans(), st.integers(1, 6))
def test_the_sum_of_the_sites_histograms_is_the_histogram_of_all(seed, score, by_class, sites):
    probs, y = predicted(seed, 200)
    whole = held_out_histogram(score, probs, y, by_class)
    at = torch.randint(sites, (200,), generator=torch.Generator().manual_seed(seed))
    parts = [held_out_histogram(score, probs[at == k], y[at == k], by_class) for k in range(sites)]
    assert torch.equal(sum(parts), whole)
    heights = {len(whole)}
    assert heights == {6 if by_class else 1}
    for k, part in enumerate(parts):
        risk = torch.zeros(2, BINS, dtype=torch.int64)
        risk[k % 2, k] = part.sum()
        again = believed(HeldOut(part, risk).told(), len(whole), 2)
        assert torch.equal(again.scores, part) and torch.equal(again.risk, risk)


@given(seeds, st.sampled_from(SCORES), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_a_threshold_ends_the_bin_that_holds_the_exact_quantile(seed, score, level):
    probs, y = predicted(seed, 150)
    own = scores_by_hand(score, probs)[np.arange(150), y.numpy()]
    found = threshold(held_out_histogram(score, probs, y)[0], level)
    exact = quantile_by_hand(own, level)
    assert upper_edge(found) >= exact - 1e-6
    assert found == 0 or upper_edge(found - 1) <= exact + 1e-6


@pytest.mark.slow
@given(seeds, st.sampled_from(SCORES))
def test_sets_are_those_of_the_exact_quantile_and_at_most_a_bin_more(seed, score):
    probs, y = predicted(seed, 150)
    new, _ = predicted(seed + 1, 100)
    found = Thresholds(0.9, held_out_histogram(score, probs, y)).sets(score, new)
    by_hand = scores_by_hand(score, probs)[np.arange(150), y.numpy()]
    bound = quantile_by_hand(by_hand, 0.9)
    exact = torch.from_numpy(scores_by_hand(score, new) <= bound + 1e-12)
    edge = torch.from_numpy(class_bins(score, new).numpy() == threshold(
        held_out_histogram(score, probs, y)[0], 0.9
    ))  # fmt: skip
    assert torch.equal(found, exact | (found & edge))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("level", [0.8, 0.9])
def test_coverage_over_random_splits_is_between_the_bounds(score, level):
    n, splits = 99, 300
    probs, y = predicted(7, 4000)
    bins = class_bins(score, probs).gather(1, y[:, None])[:, 0]
    generator, rates, masses = torch.Generator().manual_seed(1), [], []
    for _ in range(splits):
        order = torch.randperm(len(y), generator=generator)
        held, new = bins[order[:n]], bins[order[n:]]
        found = threshold(torch.bincount(held, minlength=BINS), level)
        rates.append(float((new <= found).double().mean()))
        masses.append(float((new == found).double().mean()))
    noise = 4 * np.std(rates) / math.sqrt(splits)
    assert np.mean(rates) >= level - noise
    assert np.mean(rates) <= level + 1 / (n + 1) + np.mean(masses) + noise


@pytest.mark.parametrize("score", SCORES)
def test_sure_networks_do_not_pile_up_in_the_last_bin(score):
    probs, y = predicted(3, 5000, classes=10, sureness=25.0)
    histogram = held_out_histogram(score, probs, y)[0]
    assert probs.amax(1).median() > 0.999
    assert int(histogram[-1]) < 0.001 * len(y)
    beyond = histogram.clone()
    beyond[:128] = 0  # scores below 1e-6: of aps and raps 0, where the first class is right
    assert int(beyond.max()) < 0.02 * len(y)


def test_aps_and_raps_give_no_empty_set():
    probs, y = predicted(4, 300, sureness=10.0)
    new, _ = predicted(5, 300, sureness=10.0)
    for score in ("aps", "raps"):
        by = Thresholds(0.5, held_out_histogram(score, probs, y))
        assert int(by.sets(score, new).sum(1).min()) >= 1


def test_thresholds_by_class_lift_the_worst_class():
    probs, y = predicted(6, 20000, classes=4, sureness=1.0)
    biased = (probs.log() + torch.tensor([1.5, 0, 0, 0])).softmax(-1)
    held, new = slice(0, 10000), slice(10000, 20000)

    def worst(by_class):
        counts = held_out_histogram("lac", biased[held], y[held], by_class)
        sets = Thresholds(0.9, counts).sets("lac", biased[new])
        hits = sets.gather(1, y[new][:, None])[:, 0]
        return min(float(hits[y[new] == c].double().mean()) for c in range(4))

    assert worst(by_class=False) < 0.88
    assert worst(by_class=True) > 0.88


def test_a_class_with_too_few_examples_has_the_threshold_of_all():
    probs, y = predicted(8, 400, classes=3)
    few = torch.cat([(y == 0).nonzero()[:8, 0], (y > 0).nonzero()[:, 0]])
    counts = held_out_histogram("lac", probs[few], y[few], by_class=True)
    by = Thresholds(0.9, counts)
    assert examples_needed(0.9) == 9 and by.short == [0]
    assert int(by.bins[0]) == threshold(counts.sum(0), 0.9)
    assert int(by.bins[1]) == threshold(counts[1], 0.9)


@given(st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99, 0.999]))
def test_fewer_examples_than_a_level_needs_give_sets_of_all_classes(level):
    needed = examples_needed(level)
    for held in (needed - 1, needed):
        counts = torch.zeros(BINS, dtype=torch.int64)
        counts[3] = held
        assert threshold(counts, level) == (3 if held == needed else BINS - 1)
    everything = Thresholds(level, torch.zeros(1, BINS, dtype=torch.int64))
    assert everything.sets("lac", torch.tensor([[1.0, 0.0], [math.nan, 0.5]])).all()
    low, high = everything.intervals(Forecast(torch.zeros(2), torch.zeros(2), torch.zeros(2)))
    assert (low == -math.inf).all() and (high == math.inf).all()


def test_covered_counts_what_sets_hold():
    probs, y = predicted(9, 500)
    for by_class in (False, True):
        counts = held_out_histogram("raps", probs, y, by_class)
        by = Thresholds(0.8, counts)
        assert by.covered(counts) == int(by.sets("raps", probs).gather(1, y[:, None]).sum())


@pytest.mark.parametrize(
    "answer",
    [
        {"cells": [1, 1], "counts": [1, 1]},
        {"cells": [1], "counts": [1, 2]},
        {"cells": [BINS], "counts": [1]},
        {"cells": [-1], "counts": [1]},
        {"cells": [1], "counts": [0]},
        {"cells": [1], "counts": [-3]},
        {"cells": [1], "counts": [0.5]},
        {"cells": [1], "counts": [True]},
        {"cells": 1, "counts": 1},
    ],
)
def test_a_histogram_that_is_none_is_not_believed(answer):
    other = {"cells": [1], "counts": [1]}
    with pytest.raises(ValueError):
        believed(answer | {f"risk-{name}": value for name, value in other.items()}, 1, 2)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 1.5, math.nan])
def test_a_level_lies_between_0_and_1(level):
    with pytest.raises(SettingError, match="level"):
        Thresholds(level, torch.zeros(1, BINS, dtype=torch.int64))


@given(st.integers(1, 400), st.data())
def test_an_interval_holds_the_rate_and_is_scipy_s(count, data):
    from scipy.stats import binomtest

    hits = data.draw(st.integers(0, count))
    low, high = interval(hits, count)
    exact = binomtest(hits, count).proportion_ci(0.95, "exact")
    assert (low, high) == (pytest.approx(exact.low, abs=1e-9), pytest.approx(exact.high, abs=1e-9))


def test_coverage_counts_hits_and_sizes():
    sets = torch.tensor([[True, True, False], [False, False, False], [True, False, False]])
    hits = sets.gather(1, torch.tensor([1, 0, 0])[:, None])[:, 0]
    found = coverage(hits, sets.sum(1))
    assert found["coverage"] == pytest.approx(2 / 3)
    assert found["set_size"] == 1.0 and found["empty"] == pytest.approx(1 / 3)
    assert found["set_size_low"] < 1 < found["set_size_high"]
