"""A digest tells whether data are the same, how they differ, and what was trained on."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from refusals import refused

from fedbary.data.deal import Deal, Shard, client_shard, trained_rows
from fedbary.data.digest import digest_of, repeats, row_hashes
from fedbary.data.images import Dataset
from fedbary.errors import SettingError
from fedbary.runs.data_kept import DATA, ROWS, read_digest, require_same_site, write_digest

X = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 3)))
Y = torch.arange(40) % 3
TRAINED = torch.arange(0, 40, 2)


def digest(x=X, y=Y, scored=(X[:4], Y[:4]), layout=None):
    return digest_of(x, y, scored, TRAINED[TRAINED < len(x)], layout or {"features": ["a", "b"]})


@given(st.integers(0, 99), st.booleans(), st.integers(1, 3))
def test_rows_of_few_values_are_equal_by_chance_and_copies_are_not(seed, with_number, copies):
    """Copies are counted if a column, or many columns together, tell the others apart."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(0, 2, (120, 5 if copies == 1 else 24))).double()
    if with_number:
        x[:, 0] = torch.from_numpy(rng.normal(size=120))
    x = x.repeat(copies, 1)[rng.permutation(120 * copies)]
    assert (repeats(x[:40], row_hashes(x[40:])) > 0) == (copies > 1)


def test_a_new_row_of_a_group_that_was_trained_on_is_known(tmp_path):
    groups = torch.arange(40) // 4
    kept = digest_of(X, Y, (X, Y), TRAINED[TRAINED < 12], {}, groups)
    write_digest(tmp_path, kept)
    for held in (kept, read_digest(tmp_path)):
        assert torch.equal(held.trained_on(X + 1, groups), groups < 3)
        assert held.trained_on(X).sum() == 6 and not held.trained_on(X + 1).any()


@given(st.integers(0, 38), st.integers(1, 39))
def test_any_exchange_of_rows_is_another_order(one, other):
    index = torch.arange(40)
    index[[one, max(one + 1, other)]] = index[[max(one + 1, other), one]]
    with pytest.raises(SettingError, match="d'; expected the data .*: another order of rows"):
        digest().require_same(digest(X[index], Y[index]), "d")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (lambda: digest(X[:33], Y[:33]), "other rows, 33 in place of 40"),
        (lambda: digest(X + 1, layout={"features": ["a", "c"]}), "other columns or classes"),
        (lambda: digest(X.float()), "40 of 40 rows are others"),
        (lambda: digest(torch.cat([X[:39], X[39:] + 1])), "1 of 40 rows are others"),
        (lambda: digest(y=Y.flip(0)), "other targets or test data"),
        (lambda: digest(scored=(X[1:5], Y[1:5])), "other targets or test data"),
    ],
)
def test_what_is_different_is_said_in_one_line(now, said):
    refused(f"d'; expected the data .* with: {said}", lambda: digest().require_same(now(), "d"))


def test_what_was_trained_on_is_known_in_any_order_and_nothing_else_is():
    index = torch.randperm(40)
    assert digest().trained_on(X[index]).tolist() == (index % 2 == 0).tolist()
    assert not digest().trained_on(X + 1e-9).any()
    assert not digest().trained_on(X[:0]).any()


def test_missing_values_have_no_range():
    x = X.clone()
    x[:, 0], x[3, 1] = torch.nan, torch.nan
    said = digest(x).said
    assert said["least"][0] is said["most"][0] is None
    assert said["least"][1] == float(X[:, 1].min()) and "NaN" not in json.dumps(said)
    digest(x).require_same(digest(x.clone()), "d")


def test_scored_data_are_known():
    digest().require_scored(X[:4], Y[:4], "d")
    refused("some may have been trained on", lambda: digest().require_scored(X[1:5], Y[1:5], "d"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_equal_inputs_have_equal_hashes_however_they_lie(dtype):
    x = (10 * X.reshape(20, 2, 3)).to(dtype)
    strided = torch.stack([x, x], 3)[..., 0]
    assert torch.equal(row_hashes(strided), row_hashes(x))
    assert len(row_hashes(x).unique()) == len(x)
    zeros = torch.zeros(2, 3, dtype=dtype)
    zeros[1] = -zeros[1]
    assert len(row_hashes(zeros).unique()) == 1


def test_a_digest_is_what_it_was_after_it_was_kept(tmp_path):
    assert read_digest(tmp_path) is None
    write_digest(tmp_path, digest())
    kept = read_digest(tmp_path)
    kept.require_same(digest(), "d")
    assert kept.said == digest().said and torch.equal(kept.trained, digest().trained)
    (tmp_path / DATA).write_bytes(b"{}")
    refused("data.json, data-rows", read_digest, tmp_path)
    (tmp_path / ROWS).unlink()
    assert read_digest(tmp_path) is None


@settings(max_examples=20)
@given(st.sampled_from([0.0, 0.1, 0.5]), st.integers(1, 5), st.sampled_from([0.0, 0.2]))
def test_the_rows_that_are_trained_on_are_those_of_the_shards(holdout, clients, kept):
    x = torch.arange(200.0).view(-1, 1, 1, 1)
    held = Dataset("d", x, torch.arange(200) % 2, x[:2], Y[:2], ("a", "b"))
    deal = Deal(partition="iid", holdout=holdout, server_fraction=kept)
    shards = [client_shard(held, deal, clients, client) for client in range(clients)]
    trained = {int(value) for shard in shards for value in shard.x.flatten()}
    rows = trained_rows(held, deal, clients)
    assert len(rows) == len(set(rows.tolist())) == len(trained) + round(kept * 200)
    assert trained <= set(rows.tolist())
    assert len(trained_rows(held, deal, 0)) == round(kept * 200)


def test_a_site_s_changed_data_are_refused_without_a_word_of_them(tmp_path):
    def shard(x):
        return Shard(x[4:], Y[4:], x[:4], Y[:4])

    require_same_site(tmp_path, shard(X), True)
    require_same_site(tmp_path, shard(X.clone()), False)
    with pytest.raises(SettingError, match="^the site's data: 'other data'; expected") as e:
        require_same_site(tmp_path, shard(X.flip(0)), False)
    assert not any(character.isdecimal() for character in str(e.value))
    require_same_site(tmp_path, shard(X.flip(0)), True)
    require_same_site(tmp_path, shard(X.flip(0)), False)


def test_a_site_that_answers_late_has_the_data_of_its_first_answer_in_the_run(tmp_path):
    """A run is known by its facts."""

    def shard(x):
        return Shard(x[4:], Y[4:], x[:4], Y[:4])

    one, other = {"mean": torch.ones(2)}, {"mean": torch.zeros(2)}
    require_same_site(tmp_path, shard(X), True, one)
    require_same_site(tmp_path, shard(X.flip(0)), False, other)
    for facts in (one, other):
        require_same_site(tmp_path, shard(X), True, facts)
        with pytest.raises(SettingError, match="^the site's data"):
            require_same_site(tmp_path, shard(X.flip(0)), False, facts)
