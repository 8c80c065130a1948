"""No combination of the columns of terms is 0 without a few rows."""

from itertools import combinations, pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.data.terms import spline
from fedbary.runs.answered import in_common, unusual
from fedbary.tasks._shown import shown_by_knots


@given(st.lists(st.integers(0, 6), min_size=20, max_size=60), st.integers(1, 4), st.integers(2, 6))
def test_any_values_left_out_leave_none_or_enough(values, functions, least):
    """d functions and a constant are 0 at any d values, which others keep."""
    values = np.array(values)
    found = unusual(values, functions)
    held = np.stack(found, 1) if found else np.zeros((len(values), 0), dtype=bool)
    kept = values[in_common(held, np.ones(len(values), dtype=bool), least)]
    every = np.unique(kept)
    for zeros in combinations(every, min(functions, max(len(every) - 1, 0))):
        rest = len(kept) - np.isin(kept, zeros).sum()
        assert rest == 0 or rest >= least or 2 * rest > len(values)


KNOTS = st.lists(st.integers(0, 30), min_size=3, max_size=8, unique=True).map(sorted)


@given(KNOTS)
def test_a_spline_shows_what_it_can_be_0_without_and_no_less(knots):
    """Of points on each piece: each window that is named is one, and no shorter window is."""
    knots = torch.tensor(knots).double()
    inner = [torch.linspace(a, b, 8)[1:-1] for a, b in pairwise(knots.tolist())]
    ends = torch.linspace(-1, -0.1, 6) + knots[0], torch.linspace(0.1, 1, 6) + knots[-1]
    pieces = [ends[0], *inner, ends[1]]
    x = torch.cat(pieces).double()
    unit = (x - x.mean()) / x.std()
    columns = torch.cat([torch.ones(len(x), 1), spline(x, knots)[:, 1:], unit[:, None]], 1)
    columns = torch.linalg.qr(columns.double())[0]

    def shows(first, last):
        """Whether a combination is 0 but on the pieces from one up to another."""
        held = torch.arange(len(x)) // 6
        there = (held >= first) & (held < last)
        return bool(torch.linalg.svdvals(columns[~there])[-1] < 1e-7)

    count = len(pieces)
    windows = [(a, b) for a in range(count) for b in range(a + 1, count) if shows(a, b)]
    windows += [(a, count) for a in range(1, count) if shows(a, count)]
    least = [
        (a, b) for a, b in windows
        if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in windows)
    ]  # fmt: skip
    assert sorted(shown_by_knots(x, knots)) == sorted(6 * (b - a) for a, b in least)
