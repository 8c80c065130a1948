"""Laws of who holds what."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbary.data.partition import PARTITIONS, partition, split_holdout
from fedbary.errors import SettingError


def labels_of(n: int, classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, n)


LABELS = labels_of(3000)
LABELS.flags.writeable = False


@pytest.mark.slow
@given(
    scheme=st.sampled_from(PARTITIONS),
    clients=st.integers(1, 20),
    seed=st.integers(0, 2**63 - 1),
    alpha=st.floats(0.3, 100),
    min_examples=st.integers(1, 20),
)
def test_every_deal_keeps_the_laws(scheme, clients, seed, alpha, min_examples):
    options = {"alpha": alpha, "classes_per_client": 10, "min_examples": min_examples}
    parts = partition(LABELS, scheme, clients, seed, **options)
    sizes = [len(part) for part in parts]
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    assert min(sizes) >= min_examples
    assert sizes == sorted(sizes, reverse=True)
    assert all((np.diff(part) > 0).all() for part in parts)
    again = partition(LABELS, scheme, clients, seed, **options)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_another_seed_deals_and_holds_out_otherwise():
    for scheme in PARTITIONS:
        first, second = (partition(LABELS, scheme, 5, seed)[0] for seed in (0, 1))
        assert not np.array_equal(first, second)
    first, second = (split_holdout(np.arange(100), 0.2, seed)[1] for seed in (0, 1))
    assert not np.array_equal(first, second)


def label_counts(labels, parts, num_classes):
    """Return how many examples of each class each client holds, (clients, classes)."""
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def skew(labels: np.ndarray, parts: list[np.ndarray]) -> float:
    """Mean total variation between a client's label shares and those of all."""
    counts = label_counts(labels, parts, 10)
    shares = counts / counts.sum(1, keepdims=True)
    overall = counts.sum(0) / counts.sum()
    return float(np.abs(shares - overall).sum(1).mean() / 2)


def test_smaller_alpha_skews_labels_more():
    skews = [
        np.mean([skew(LABELS, partition(LABELS, "dirichlet", 5, s, alpha=a)) for s in range(5)])
        for a in (0.1, 0.5, 5, 1000)
    ]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.5 and skews[-1] < 0.05


def test_dirichlet_stops_serving_clients_that_hold_their_share():
    """Who holds N/K or more gets no further class: each class's gain starts below it."""
    labels = np.repeat(np.arange(10), 300)
    for seed in range(20):
        parts = partition(labels, "dirichlet", 6, seed)
        before = np.cumsum(label_counts(labels, parts, 10), axis=1)
        gained = label_counts(labels, parts, 10)[:, 1:] > 0
        assert (before[:, :-1][gained] < 500).all()


@pytest.mark.slow
def test_dirichlet_shares_have_the_stated_law():
    """Of two clients, the first class is split Beta(alpha, alpha): variance 1 / (8 alpha + 4)."""
    labels = np.zeros(1000, dtype=int)
    alpha = 2.0
    largest = [
        len(partition(labels, "dirichlet", 2, seed, alpha=alpha, min_examples=1)[0]) / 1000
        for seed in range(2000)
    ]
    variance = np.mean((np.array(largest) - 0.5) ** 2)
    assert variance == pytest.approx(1 / (8 * alpha + 4), rel=0.1)


def test_iid_is_even():
    parts = partition(LABELS, "iid", 7, 0)
    assert {len(part) for part in parts} <= {3000 // 7, 3000 // 7 + 1}
    assert skew(LABELS, parts) < 0.1


@pytest.mark.parametrize(("clients", "each"), [(10, 1), (10, 2), (5, 2), (17, 3), (3, 10), (1, 10)])
def test_classes_gives_each_client_so_many(clients, each):
    counts = label_counts(
        LABELS, partition(LABELS, "classes", clients, 3, classes_per_client=each), 10
    )
    assert ((counts > 0).sum(1) == each).all()
    holders = (counts > 0).sum(0)
    assert holders.min() >= 1 and holders.max() - holders.min() <= 1
    for column in counts.T:
        held = column[column > 0]
        assert held.max() - held.min() <= 1


def test_quantity_skews_sizes_but_not_labels():
    labels = labels_of(20000)
    uneven, even = (
        np.std([len(p) for p in partition(labels, "quantity", 5, 0, alpha=a)]) for a in (0.3, 1000)
    )
    assert uneven > 10 * even
    largest = partition(labels, "quantity", 5, 0, alpha=0.3)[:1]
    assert skew(labels, [*largest]) < 0.05


def test_labels_need_not_start_at_zero_or_be_consecutive():
    for scheme in PARTITIONS:
        parts = partition(LABELS * 3 + 7, scheme, 4, 0, classes_per_client=3)
        assert sum(map(len, parts)) == len(LABELS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "shards"}, "partition: 'shards';.*dirichlet, iid, classes, quantity"),
        ({"clients": 0}, "clients: 0"),
        ({"min_examples": 0}, "min_examples: 0"),
        ({"clients": 301}, "clients: 301;.*3000 .*min_examples=10"),
        ({"alpha": 0.0}, "alpha: 0.0"),
        ({"alpha": float("nan")}, "alpha: nan"),
        ({"alpha": float("inf")}, "alpha: inf"),
        ({"scheme": "quantity", "alpha": 0.0}, "alpha: 0.0"),
        ({"alpha": 1e-6, "clients": 30}, "alpha: 1e-06;.*larger alpha.*1000 draws"),
        ({"clients": 300}, "alpha: 0.5;.*larger alpha or fewer clients than 300"),
        ({"scheme": "classes", "classes_per_client": 11}, "classes_per_client: 11;.*2 to 10"),
        ({"scheme": "classes", "classes_per_client": 1}, "classes_per_client: 1;.*2 to 10"),
    ],
)
def test_impossible_settings_are_named(changes, message):
    arguments = {"scheme": "dirichlet", "clients": 5, "seed": 0} | changes
    with pytest.raises(SettingError, match=message):
        partition(LABELS, **arguments)


def test_classes_too_small_for_the_minimum():
    labels = np.repeat([0, 1], [95, 5])
    with pytest.raises(SettingError, match="classes_per_client: 1;.*min_examples below 10"):
        partition(labels, "classes", 2, 0, classes_per_client=1)


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 1e300])
def test_extreme_alpha(alpha):
    sizes = [len(p) for p in partition(LABELS, "quantity", 5, 0, alpha=alpha)]
    assert sum(sizes) == 3000 and min(sizes) >= 10
    parts = partition(LABELS, "dirichlet", 3, 0, alpha=alpha)
    assert sum(map(len, parts)) == 3000


@given(
    n=st.integers(0, 200),
    fraction=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**63 - 1),
)
def test_holdout_laws(n, fraction, seed):
    indices = 7 * np.arange(n)
    train, aside = split_holdout(indices, fraction, seed)
    assert np.array_equal(np.sort(np.concatenate([train, aside])), indices)
    if fraction == 0 or n < 2:
        assert len(aside) == 0
    else:
        assert len(train) >= 1 and len(aside) >= 1
        assert abs(len(aside) - fraction * n) <= 1
    assert np.array_equal(split_holdout(indices, fraction, seed)[1], aside)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0, float("nan")])
def test_holdout_fraction_out_of_range(fraction):
    with pytest.raises(SettingError, match="holdout: "):
        split_holdout(np.arange(10), fraction, 0)
