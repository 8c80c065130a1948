"""The rows of all answers: no sums of them are those of fewer rows than a site must have."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbary.data.frame import frame_of
from fedbary.data.sites import Limits
from fedbary.errors import SettingError
from fedbary.runs.answered import ANSWERED, Asked, fewest, hashes_of, kept_apart
from fedbary.runs.sent import Sent

LIMITS = Limits(min_rows=4, max_columns=1.0, budget=99.0)
ROWS = 60


def kept_of(folder, rows, columns, marks=None):
    """The rows of those that a site is asked for that it answers from."""
    marks = np.zeros((len(rows), 0), dtype=bool) if marks is None else marks
    return rows[kept_apart(folder, Asked(rows, marks, marks[:, :0], columns), LIMITS).rows]


def answers(folder, seed, number):
    """Sets of rows that a site is asked for and those that it answers from, with their columns."""
    draw, found = np.random.default_rng(seed), []
    hashes = draw.integers(-(2**63), 2**63 - 1, ROWS)
    for _ in range(number):
        wanted = hashes[draw.random(ROWS) > draw.choice([0, 0.03, 0.1, 0.5])]
        columns = int(draw.integers(1, 9))
        found.append((wanted, kept_of(folder, wanted, columns), columns))
    return found


def blocks(sets, rows):
    """How many rows have each pattern of sets, without those of none."""
    patterns = np.stack([np.isin(rows, each) for each in sets], 1)
    kinds, counts = np.unique(patterns, axis=0, return_counts=True)
    return counts[kinds.any(1)]


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), number=st.integers(1, 6))
def test_no_combination_of_answers_is_a_sum_of_few_rows(tmp_path_factory, seed, number):
    held = answers(tmp_path_factory.mktemp("site"), seed, number)
    rows = np.unique(np.concatenate([wanted for wanted, _, _ in held]))
    for width in {columns for _, _, columns in held}:
        sets = [kept for _, kept, columns in held if columns >= width]
        assert all(blocks(sets, rows) >= fewest(LIMITS, width))


def shown(held, marks):
    """How many rows with each mark each pattern of sets has, without patterns of none."""
    patterns = np.stack([kept for kept, _ in held], 1)
    kinds, kind = np.unique(patterns, axis=0, return_inverse=True)
    counts = np.array([marks[kind.ravel() == each].sum(0) for each in range(len(kinds))])
    return counts[kinds.any(1)]


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), number=st.integers(1, 5))
def test_no_combination_of_answers_shows_few_rows_of_a_level(tmp_path_factory, seed, number):
    """Also where rows that lack a cell have a level that the site does not see in this run."""
    draw, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("site")
    rows = draw.integers(-(2**63), 2**63 - 1, ROWS)
    marks = draw.random((ROWS, 3)) < draw.choice([0.1, 0.3, 0.5], 3)
    marks = np.column_stack([marks, ~marks])
    limits = Limits(min_rows=4, max_columns=1.0, min_cell=3, budget=99.0)
    held = []
    for _ in range(number):
        wanted = draw.random(ROWS) > draw.choice([0, 0.03, 0.1, 0.5])
        found = kept_apart(
            folder, Asked(rows[wanted], marks[wanted, :4], marks[wanted, 4:], 2), limits
        ).rows
        kept = np.zeros(ROWS, dtype=bool)
        kept[np.flatnonzero(wanted)[found]] = True
        held.append((kept, wanted))
    counts = shown(held, marks)
    assert not ((counts > 0) & (counts < limits.min_cell)).any()


@given(answers=st.integers(0, 40), columns=st.integers(1, 12))
def test_rows_that_bear_answers_bear_three_more(tmp_path_factory, answers, columns):
    """They are the budget's share of the numbers that a block has, or a level's rows in it."""
    folder, limits = tmp_path_factory.mktemp("site"), Limits()
    rows = np.random.default_rng(columns).integers(0, 2**60, 4000)
    marks = (np.arange(4000) % 3 == 0)[:, None]
    kept_apart(folder, Asked(rows, marks, marks[:, :0], columns), limits)
    Sent(0, float(answers)).write(folder)
    found = kept_apart(folder, Asked(rows[1:], marks[1:], marks[1:, :0], columns), limits)
    gone = np.setdiff1d(np.arange(3999), found.rows)
    assert 4000 > found.bear >= answers + 3
    block, pairs = len(gone) + 1, found.bear / 2
    numbers = (columns + 1) * (columns + 4) / 2
    assert pairs * numbers <= limits.budget * block * (columns + 1) * (1 + 1e-9)
    assert pairs <= limits.budget * marks[1:][gone].sum()


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_the_same_question_has_the_same_rows_again(tmp_path_factory, seed):
    """Also after other runs: a run that goes on has the rows that it began with."""
    folder = tmp_path_factory.mktemp("site")
    held = answers(folder, seed, 5)
    for wanted, kept, columns in held:
        assert set(kept_of(folder, wanted, columns)) == set(kept)


def test_rows_that_differ_by_enough_are_all_answered_from(tmp_path):
    rows = np.random.default_rng(0).integers(0, 2**60, ROWS)
    for wanted in (rows[:40], rows, rows[4:], rows[:36], rows[:40]):
        assert len(kept_of(tmp_path, wanted, 4)) == len(wanted)
    assert len(kept_of(tmp_path, rows[:39], 4)) == 36  # rows 36 to 40 are a block
    assert len(kept_of(tmp_path, np.append(rows, 7), 4)) == ROWS  # a new row waits


def table(**columns):
    return frame_of("t", pd.DataFrame(columns), "")


def test_a_row_is_known_by_its_cells_whatever_the_order_of_rows_and_columns():
    held = {"u": [1.5, 2, np.nan, 2, 0], "name": ["a", "b", None, "b", "a"]}
    found = hashes_of(table(**held))
    assert len(set(found)) == 5
    turned = hashes_of(table(name=held["name"][::-1], u=held["u"][::-1]))
    assert set(turned) == set(found)
    changed = hashes_of(table(u=held["u"], name=["c", *held["name"][1:]]))
    assert len(set(changed) & set(found)) == 4


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 99])
def test_a_damaged_file_is_no_empty_one(content, tmp_path):
    rows = np.arange(ROWS)
    kept_of(tmp_path, rows, 2)
    file = tmp_path / ANSWERED
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(content or file.read_bytes()[:-1])
    with pytest.raises(SettingError, match="the file as the site wrote it"):
        kept_of(tmp_path, rows, 2)
