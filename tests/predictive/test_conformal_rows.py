"""Thresholds of classes, groups and sites, intervals of numbers, and what a hostile site moves."""

import math
from statistics import median_low

import numpy as np
import pytest
import torch
from conformal_by_hand import SCORES, held_out_histogram, predicted, quantile_by_hand
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbary.predictive import Forecast
from fedbary.predictive.conformal import (
    BINS,
    HeldOut,
    Thresholds,
    bins_of,
    bounded,
    counted,
    least_coverage,
    residual_bins,
    threshold,
    together,
    true_class_bins,
    upper_odds,
)
from fedbary.predictive.risk import certain

seeds = st.integers(0, 10**6)


@pytest.mark.slow
@given(seeds, st.sampled_from([0.8, 0.9]), st.integers(1, 3), st.data())
def test_a_hostile_site_moves_coverage_no_further_than_its_share(seed, level, rows, data):
    n = 200
    generator = torch.Generator().manual_seed(seed)
    honest = torch.rand(n, generator=generator).double()
    of_row = torch.randint(rows, (n,), generator=generator)
    counts = counted(bins_of(honest, 1 - honest), of_row, rows)
    ends = st.one_of(st.sampled_from([0, BINS - 1]), st.integers(0, BINS - 1))
    cells = data.draw(st.lists(st.tuples(st.integers(0, rows - 1), ends, st.integers(1, 30))))
    forged = torch.zeros_like(counts)
    for row, cell, count in cells:
        forged[row, cell] += count
    by = Thresholds(level, counts + forged)
    for row, held in enumerate(counts):
        if row in by.short:
            continue
        count, lies = int(held.sum()), int(forged[row].sum())
        kept = int(held[: int(by.bins[row]) + 1].sum())
        below = kept - int(held[by.bins[row]])
        assert kept >= level * (count + 1) - (1 - level) * lies - 1e-9
        assert below < level * (count + lies + 1)
    assert torch.equal(by.without(forged).counts, counts)
    own = by.of_site(counts, by_class=False)
    enough = [row for row in range(rows) if row not in Thresholds(level, counts).short]
    assert [int(own.bins[k]) for k in enough] == [threshold(counts[k], level) for k in enough]


sizes_of_sites = st.lists(
    st.one_of(st.integers(1, 300), st.integers(1, 10**9)), min_size=1, max_size=7
)


def proportional(seed, sizes):
    """Sites with so many examples or fewer, in random bins."""
    generator = torch.Generator().manual_seed(seed)
    sites = {}
    for name, size in enumerate(sizes):
        counts = torch.zeros(2, BINS, dtype=torch.int64)
        cells = torch.randint(BINS, (5,), generator=generator)
        counts[0, cells] = size // 5 + 1
        sites[str(name)] = HeldOut(counts, counts[:0])
    return sites


@given(seeds, sizes_of_sites, st.sampled_from([None, 1.5]))
def test_no_two_sites_count_for_more_than_all_others_or_than_the_median(seed, sizes, ratio):
    """What counts of a site has its proportions: sums of cells differ by less than an example."""
    sites = proportional(seed, sizes)
    held = [site.examples for site in sites.values()]
    found = {name: site.examples for name, site in bounded(sites, ratio).items()}
    counted = sorted(found.values(), reverse=True)
    few, usual = 1 if len(held) < 5 else 2, median_low(held)
    if len(held) == 1:
        assert counted == held
    elif ratio is not None:
        assert counted == sorted((min(n, math.floor(ratio * usual)) for n in held), reverse=True)
    else:
        most = max(counted)
        assert sum(counted[:few]) <= sum(counted[few:]) or most == usual
        assert sorted((min(n, most) for n in held), reverse=True) == counted
        if most < max(held):  # no larger bound would do
            more = sorted((min(n, most + 1) for n in held), reverse=True)
            assert sum(more[:few]) > sum(more[few:])
    for name, site in bounded(sites, ratio).items():
        assert (site.scores >= 0).all()
        before, after = (x.flatten().cumsum(0) for x in (sites[name].scores, site.scores))
        short = before.double() * site.examples / sites[name].examples - after
        assert (-1e-3 <= short).all() and (short < 1 + 1e-3).all()


@given(
    st.lists(st.integers(1, 10**4), min_size=2, max_size=8),
    st.lists(st.integers(1, 10**12), min_size=1, max_size=2),
)
def test_hostile_sites_count_for_no_more_than_the_others_whatever_they_claim(honest, claims):
    """One may be hostile, of five and more two; beyond that a claim counts for the median."""
    few = 1 if len(honest) + len(claims) < 5 else 2
    claims = claims[:few]
    names = [f"honest {k}" for k in range(len(honest))], [f"liar {k}" for k in range(len(claims))]
    sizes = dict(zip([*names[0], *names[1]], [*honest, *claims], strict=True))
    sites = {}
    for name, size in sizes.items():
        counts = torch.zeros(1, BINS, dtype=torch.int64)
        counts[0, 0] = size
        sites[name] = HeldOut(counts, counts[:0])
    found = {name: site.examples for name, site in bounded(sites, None).items()}
    n, m = (sum(found[name] for name in part) for part in names)
    usual = median_low(sizes.values())
    assert m <= max(n, len(claims) * usual)
    assert len(claims) > 1 or m <= n
    assert least_coverage(0.9, found.values(), len(claims)) <= 0.9 - 0.1 * m / (n + 1) + 1e-12


@pytest.mark.parametrize("hostile, least", [(0, 0.9), (1, 0.85), (2, 0.8)])
@pytest.mark.parametrize("claim", [300, 10**9])
def test_of_five_sites_two_that_claim_a_milliard_do_not_void_sets_and_referral(
    hostile, least, claim
):
    """All that they hold has the lowest score, and is right at the lowest uncertainty."""
    covered = []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        score = torch.rand(5, 300, generator=generator).double()
        odds = torch.rand(5, 300, generator=generator).double()
        right = torch.rand(5, 300, generator=generator) > 0.15 * odds
        sites = {}
        for k in range(5):
            scores = counted(bins_of(score[k], 1 - score[k]), torch.zeros(300).long(), 1)
            risk = counted(bins_of(odds[k], 1 - odds[k]), (~right[k]).long(), 2)
            if k < hostile:
                scores, risk = torch.zeros_like(scores), torch.zeros_like(risk)
                scores[0, 0] = risk[0, 0] = claim
            sites[str(k)] = HeldOut(scores, risk)
        found = bounded(sites, None)
        sums = together(found.values())
        honest = together([found[str(k)] for k in range(hostile, 5)])
        by = Thresholds(0.9, sums.scores)
        covered.append(by.covered(honest.scores) / honest.examples)
        held = [site.examples for site in found.values()]
        lies = sum(held[:hostile])
        assert hostile == 0 or 300 <= lies <= honest.examples
        kept = honest.risk[:, : certain(sums.risk, 0.03, 0.9).number + 1].sum(1)
        assert kept.sum() < honest.examples
        assert kept[1] <= 0.03 * (kept.sum() + lies)
        floor = least_coverage(0.9, held, hostile)
        assert covered[-1] >= floor - 1 / honest.examples and floor >= least - 1e-3
    assert np.mean(covered) < least + 0.06


@given(seeds, st.integers(2, 5), st.sampled_from([0.8, 0.9]))
@settings(max_examples=20)
def test_a_server_that_sees_masked_sums_alone_finds_the_same_thresholds(seed, sites, level):
    """Pairwise masks of 64 bits cancel in the sum: secure aggregation changes no threshold."""
    generator = torch.Generator().manual_seed(seed)
    held = [torch.randint(5, (2, BINS), generator=generator) for _ in range(sites)]
    sent = [counts.clone() for counts in held]
    for i in range(sites):
        for j in range(i):
            mask = torch.randint(-(2**63), 2**63 - 1, (2, BINS), generator=generator)
            sent[i] += mask
            sent[j] -= mask
    assert torch.equal(
        Thresholds(level, sum(sent)).bins,
        Thresholds(level, together([HeldOut(c, c) for c in held]).scores).bins,
    )


def weighted_by_hand(scores, y, wanted, level):
    """The threshold of each class by Tibshirani's weighted quantile, sorted and one by one."""
    counts = np.bincount(y, minlength=len(wanted))
    weights = np.where(counts > 0, wanted / np.maximum(counts, 1), 0.0)
    order = np.argsort(scores, kind="stable")
    found = []
    for own in weights:
        total, reached, bound = weights[y].sum() + own, 0.0, np.inf
        for k in order:
            reached += weights[y[k]]
            if reached >= level * total * (1 - 1e-9):
                bound = scores[k]
                break
        found.append(bound)
    return np.array(found)


@given(seeds, st.sampled_from(SCORES), st.sampled_from([0.5, 0.8, 0.9]))
def test_weights_by_class_counts_give_the_weighted_quantile(seed, score, level):
    probs, y = predicted(seed, 120, classes=4)
    counts = held_out_histogram(score, probs, y, by_class=True)
    rng = np.random.default_rng(seed)
    wanted = rng.integers(0, 30, 4) * (counts.sum(1).numpy() > 0)
    found = Thresholds(level, counts, torch.from_numpy(wanted)).bins
    by_hand = weighted_by_hand(true_class_bins(score, probs, y).numpy(), y.numpy(), wanted, level)
    assert found.tolist() == [min(bound, BINS - 1) for bound in by_hand] or not wanted.any()
    alike = Thresholds(level, counts, counts.sum(1)).bins
    assert set(alike.tolist()) == {threshold(counts.sum(0), level)}


@pytest.mark.slow
def test_under_label_shift_weights_hold_the_level_and_others_do_not():
    """Coverage over 200 draws where classes are as frequent as at one site."""
    probs, y = predicted(11, 30000, classes=4, sureness=1.0)
    biased = (probs.log() + torch.tensor([1.5, 0, 0, -1.0])).softmax(-1)
    bins = true_class_bins("lac", biased, y)
    shares = torch.tensor([0.05, 0.1, 0.15, 0.7])
    wanted = (1000 * shares).long()
    generator, found = torch.Generator().manual_seed(3), {"weighted": [], "plain": []}
    for _ in range(200):
        drawn = torch.randint(len(y), (400,), generator=generator)
        counts = counted(bins[drawn], y[drawn], 4)
        for name, by in (
            ("weighted", Thresholds(0.9, counts, wanted)),
            ("plain", Thresholds(0.9, counts.sum(0, keepdim=True))),
        ):
            hit = bins <= by.bins.expand(4)[y]
            each = torch.stack([hit[y == c].double().mean() for c in range(4)])
            found[name].append(float((each * shares).sum()))
    assert 0.9 - 0.01 < np.mean(found["weighted"]) < 0.93
    assert np.mean(found["plain"]) < 0.87


def forecasts(seed, examples):
    """Forecasts whose std is right up to a factor, and targets with heavy tails."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(examples, generator=generator).double()
    std = torch.randn(examples, generator=generator).double().exp()
    noise = torch.distributions.StudentT(3.0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        y = mean + std * noise.sample((examples,)).double()
    return Forecast(mean, std.square() / 2, std.square() / 2), y


def part(forecast, index):
    return Forecast(forecast.mean[index], forecast.epistemic[index], forecast.aleatoric[index])


@given(seeds, st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_intervals_are_those_of_the_exact_quantile_and_at_most_a_bin_wider(seed, level):
    forecast, y = forecasts(seed, 150)
    new, _ = forecasts(seed + 1, 50)
    scores = ((y - forecast.mean).abs() / forecast.var.sqrt()).numpy()
    exact = quantile_by_hand(scores, level)
    bins = residual_bins(forecast, y)
    counts = counted(bins, torch.zeros_like(bins), 1)
    low, high = Thresholds(level, counts).intervals(new)
    half = exact * new.var.sqrt()
    torch.testing.assert_close(low + high, 2 * new.mean)
    wider = (high - low) / (2 * half)
    assert (wider >= 1 - 1e-9).all() and (wider <= math.exp(1 / 64) + 1e-9).all()
    edges = np.array([upper_odds(b) for b in bins.tolist()])
    assert (scores <= edges * (1 + 1e-9)).all()


@pytest.mark.slow
def test_intervals_of_groups_hold_the_level_in_each_over_random_splits():
    forecast, y = forecasts(5, 20000)
    group = (torch.arange(20000) % 4 == 0).long()
    spoilt = Forecast(forecast.mean + 3 * group, forecast.epistemic, forecast.aleatoric)
    bins = residual_bins(spoilt, y)
    generator, rates = torch.Generator().manual_seed(4), []
    for _ in range(100):
        order = torch.randperm(len(y), generator=generator)
        held, new = order[:400], order[400:]
        by = Thresholds(0.9, counted(bins[held], group[held], 2))
        low, high = by.intervals(part(spoilt, new), group[new])
        hit = (low <= y[new]) & (y[new] <= high)
        rates.append([float(hit[group[new] == k].double().mean()) for k in (0, 1)])
    for k, n in ((0, 300), (1, 100)):
        assert 0.9 - 0.01 < np.mean(rates, 0)[k] < 0.9 + 1 / n + 0.02
