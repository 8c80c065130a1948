"""Who holds which rows: nobody twice, rare classes on both sides, standardised by sums."""

import functools
import operator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.data.deal import (
    Deal,
    client_rows,
    client_shard,
    dealt,
    evaluation_data,
    rows,
    site_shard,
)
from fedbary.data.frame import frame
from fedbary.data.partition import PARTITIONS
from fedbary.data.standardise import Standardiser, Sums
from fedbary.data.tables import Layout, load_labelled
from fedbary.data.tables._layout import encode
from fedbary.errors import SettingError


def numbered(counts):
    """A table whose one feature is the number of the row."""
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    held = frame("rows", {"row": np.arange(len(y))}, y)
    return encode(held, Layout((("row", ()),), tuple(str(c) for c in range(len(counts)))))


@given(
    counts=st.lists(st.integers(20, 60), min_size=2, max_size=4),
    scheme=st.sampled_from(PARTITIONS),
    evaluate_on=st.sampled_from(["test", "validation"]),
    holdout=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 10**6),
    split=st.integers(0, 3),
)
def test_every_row_is_somewhere_once(counts, scheme, evaluate_on, holdout, seed, split):
    table = numbered(counts)
    own = (("alpha", 1.0),) if scheme in ("dirichlet", "quantity") else ()
    deal = Deal(split, evaluate_on, scheme, 2, holdout, seed, partition_parameters=own)
    clients = 3
    shards = [client_shard(table, deal, clients, client) for client in range(clients)]
    x, y = evaluation_data(table, deal)
    parts = [x, *(part for shard in shards for part in (shard.x, shard.x_held_out))]
    found = sorted(int(row) for part in parts for row in part[:, 0])
    tested = set() if evaluate_on == "test" else set(table.split(split).test.tolist())
    assert sorted([*found, *tested]) == list(range(len(table.y)))
    assert set(y.tolist()) == set(range(len(counts)))
    for shard in shards:
        assert torch.equal(table.y[shard.x[:, 0].long()], shard.y)
        assert torch.equal(table.y[shard.x_held_out[:, 0].long()], shard.y_held_out)
        assert bool(len(shard.y_held_out)) == (holdout > 0)


def test_the_deal_follows_seed_and_split_and_is_the_same_in_every_process():
    table = numbered([50, 50])
    found = {
        tuple(client_rows(table, Deal(split=split, seed=seed), 4)[0].tolist())
        for split in range(2)
        for seed in range(2)
    }
    assert len(found) == 4
    first = client_rows(table, Deal(), 4)
    for cached in (client_rows, dealt, rows):
        cached.cache_clear()
    for one, other in zip(first, client_rows(table, Deal(), 4), strict=True):
        assert (one == other).all()


def test_a_site_of_its_own_trains_on_all_but_what_it_holds_out():
    table = numbered([5, 3])
    shard = site_shard(table.x, table.y, Deal(holdout=0.25), 7)
    assert sorted(torch.cat([shard.x, shard.x_held_out])[:, 0].tolist()) == list(range(8))
    assert len(shard.y_held_out) == 2


def test_what_cannot_be_dealt_is_refused():
    with pytest.raises(SettingError, match="clients"):
        client_rows(numbered([5, 5]), Deal(partition="iid"), 4)
    with pytest.raises(SettingError, match="partition: 'fair'"):
        client_rows(numbered([50, 50]), Deal(partition="fair"), 4)
    with pytest.raises(SettingError, match="evaluate_on: 'validation'"):
        rows(numbered([2, 1]), Deal(evaluate_on="validation"))


def test_clients_standardise_together_as_if_their_rows_lay_in_one_place(tmp_path):
    table, deal = load_labelled("breast_cancer", tmp_path), Deal(split=0, holdout=0.0)
    shards = [client_shard(table, deal, 10, client) for client in range(10)]

    def asked(shift):
        return functools.reduce(operator.add, (Sums.of(shard.x, shift) for shard in shards))

    scale = Standardiser.from_sums(asked(asked(torch.zeros(30)).mean))
    pooled = scale.features(table.x[rows(table, deal)[0]]).double()
    torch.testing.assert_close(pooled.mean(0), torch.zeros(30).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        pooled.var(0, correction=0), torch.ones(30).double(), rtol=1e-5, atol=0
    )
    with pytest.raises(RuntimeError):
        scale.features(table.x[:, :29])
