"""A part of the training data is used, of which the server keeps some; in every task."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.data.deal import evaluation_data, training_data
from fedbary.data.partition import draw_part, keep_for_server
from fedbary.data.sites import Site
from fedbary.errors import SettingError
from fedbary.settings.config import resolve
from fedbary.tasks import task_of

TASKS = ["classification", "tables", "regression"]


def rows(shard):
    """Return the examples of a shard as a set."""
    return {
        (tuple(x.flatten().tolist()), float(y))
        for xs, ys in ((shard.x, shard.y), (shard.x_held_out, shard.y_held_out))
        for x, y in zip(xs, ys, strict=True)
    }


def held(task, evaluate_on, fraction, clients=3):
    """Return what the server keeps, what each client holds, and what scores models."""
    chosen = resolve(
        {
            "task": task, "clients": clients, "evaluate_on": evaluate_on,
            "server_fraction": fraction, "device": "cpu",
        }
    )  # fmt: skip
    found = task_of(chosen)
    signature = found.signature()
    sites = [Site(str(k), "", k, clients) for k in range(clients)]
    return found.server_shard(), [found.shard(site, signature) for site in sites]


@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
@pytest.mark.parametrize("task", TASKS)
def test_it_is_no_client_s_and_the_rest_is_dealt(task, evaluate_on):
    none, whole = held(task, evaluate_on, 0.0)
    kept, clients = held(task, evaluate_on, 0.1)
    count = sum(len(rows(shard)) for shard in whole)
    assert len(none.y) == 0
    assert len(kept.y) == pytest.approx(0.1 * count, rel=0.05)
    assert not rows(kept) & set().union(*map(rows, clients))
    assert rows(kept) | set().union(*map(rows, clients)) == set().union(*map(rows, whole))


@pytest.mark.parametrize("task", TASKS)
def test_what_scores_models_does_not_depend_on_it(task):
    """Neither test rows nor the validation rows are the server's to learn from."""
    for evaluate_on in ("test", "validation"):
        seen = []
        for fraction in (0.0, 0.2):
            words = {"task": task, "evaluate_on": evaluate_on, "server_fraction": fraction}
            chosen = resolve({**words, "device": "cpu"})
            found = task_of(chosen)
            seen.append(evaluation_data(found.held, found.deal))
        assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
        kept = rows(found.server_shard())
        scored = {(tuple(x.flatten().tolist()), float(y)) for x, y in zip(*seen[1], strict=True)}
        assert not kept & scored


@given(st.integers(2, 200), st.floats(0.0, 0.99), st.integers(0, 10**6))
def test_any_fraction_parts_a_pool_or_is_refused(count, fraction, seed):
    pool = torch.arange(count).mul(3).numpy()
    try:
        held, kept = keep_for_server(pool, fraction, seed)
    except SettingError as error:
        assert error.setting == "server_fraction" and round(fraction * count) in (0, count)
        return
    assert sorted([*held, *kept]) == pool.tolist() and len(held) > 0
    assert list(held) == sorted(held) and list(kept) == sorted(kept)
    assert (len(kept) > 0) == (fraction > 0)


@pytest.mark.parametrize(("setting", "value"), [("server_fraction", 0.1), ("train_fraction", 0.5)])
def test_without_data_at_the_server_there_is_nothing_to_part(setting, value):
    words = {"dataset": "none", "classes": "2", "input_shape": "1x8x8", setting: value}
    with pytest.raises(SettingError, match=setting):
        resolve(words)


@given(st.integers(1, 200), st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.integers(0, 10**6))
def test_a_larger_part_holds_the_smaller(count, one, other, seed):
    pool = torch.arange(count).mul(3).numpy()
    smaller, larger = sorted((one, other))
    try:
        some, more = (draw_part(pool, part, seed).tolist() for part in (smaller, larger))
    except SettingError as error:
        assert error.setting == "train_fraction" and round(smaller * count) == 0
        return
    assert set(some) <= set(more) <= set(pool.tolist())
    assert (len(some), len(more)) == (round(smaller * count), round(larger * count))
    assert more == sorted(more)


@pytest.mark.parametrize("task", TASKS)
def test_clients_hold_the_part_that_is_used_and_the_same_rows_score(task):
    """A fifth of the training rows; validation is drawn from all, so that it stays as it is."""
    counts, scored, held = [], [], []
    for fraction in (1.0, 0.2):
        words = {"task": task, "evaluate_on": "validation", "train_fraction": fraction}
        chosen = resolve({**words, "clients": 3, "device": "cpu"})
        found = task_of(chosen)
        signature = found.signature()
        sites = [Site(str(k), "", k, 3) for k in range(3)]
        held.append(set().union(*(rows(found.shard(site, signature)) for site in sites)))
        counts.append(len(training_data(found.held, found.deal)[1]))
        scored.append(evaluation_data(found.held, found.deal))
    assert counts[1] == round(0.2 * counts[0]) and held[1] < held[0]
    assert all(torch.equal(a, b) for a, b in zip(*scored, strict=True))
