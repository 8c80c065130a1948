"""The rows of all answers: no sums of them are those of fewer rows than a site must have."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbary.data.frame import frame_of
from fedbary.data.sites import Limits
from fedbary.errors import SettingError
from fedbary.runs.answered import ANSWERED, fewest, hashes_of, kept_apart

LIMITS = Limits(min_rows=4, max_columns=1.0)
ROWS = 60


def answers(folder, seed, number):
    """Sets of rows that a site is asked for and those that it answers from, with their columns."""
    draw, found = np.random.default_rng(seed), []
    hashes = draw.integers(-(2**63), 2**63 - 1, ROWS)
    for _ in range(number):
        wanted = hashes[draw.random(ROWS) > draw.choice([0, 0.03, 0.1, 0.5])]
        columns = int(draw.integers(1, 9))
        found.append((wanted, wanted[kept_apart(folder, wanted, columns, LIMITS)], columns))
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


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_the_same_question_has_the_same_rows_again(tmp_path_factory, seed):
    """Also after other runs: a run that goes on has the rows that it began with."""
    folder = tmp_path_factory.mktemp("site")
    held = answers(folder, seed, 5)
    for wanted, kept, columns in held:
        assert set(wanted[kept_apart(folder, wanted, columns, LIMITS)]) == set(kept)


def test_rows_that_differ_by_enough_are_all_answered_from(tmp_path):
    rows = np.random.default_rng(0).integers(0, 2**60, ROWS)
    for wanted in (rows[:40], rows, rows[4:], rows[:36], rows[:40]):
        assert len(kept_apart(tmp_path, wanted, 4, LIMITS)) == len(wanted)
    assert len(kept_apart(tmp_path, rows[:39], 4, LIMITS)) == 36  # rows 36 to 40 are a block
    assert len(kept_apart(tmp_path, np.append(rows, 7), 4, LIMITS)) == ROWS  # a new row waits


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
    kept_apart(tmp_path, rows, 2, LIMITS)
    file = tmp_path / ANSWERED
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(content or file.read_bytes()[:-1])
    with pytest.raises(SettingError, match="the file as the site wrote it"):
        kept_apart(tmp_path, rows, 2, LIMITS)
