"""No combination of the columns of terms is 0 without a few rows."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.data.layout import Layout
from fedbary.data.terms import parse, spline
from fedbary.runs.answered import in_common, unusual
from fedbary.tasks._shown import FewShown, require_weight, shown_by_knots, stretches


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


def test_weight_at_one_place_hides_no_few_rows_at_another():
    """x² (x − c) is flat at 0, where rows have weight in each answer, and steep at c."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 1)))
    layout, there = Layout((("u", ()),), ("n", "y")), torch.ones(300, 1, dtype=torch.bool)
    for terms, power in (("u", 0), ("u u^2 u^3", 2)):
        sets = stretches(parse(terms), layout, x)
        assert (sets.sum(1) == (power > 0)).all()
        p = torch.sigmoid(178 * x**power * (x - 1.5))
        none = np.zeros((300, 0), dtype=bool)
        for held in (none, sets) if power else ():
            if held is none:
                require_weight(p * (1 - p), torch.ones_like(p), there, held, 14)
            else:
                with pytest.raises(FewShown):
                    require_weight(p * (1 - p), torch.ones_like(p), there, held, 14)
        mild = torch.sigmoid(x**power * (x - 1.5))
        require_weight(mild * (1 - mild), torch.ones_like(mild), there, sets, 14)


@given(st.integers(1, 40), st.integers(0, 10**6))
def test_weight_of_rows_counts_as_that_of_equal_ones(rows, seed):
    """Whatever the scale of weights, so many equal ones pass, and fewer do not."""
    weights = torch.zeros(60, 1, dtype=torch.float64)
    weights[:rows] = 10.0 ** -(seed % 200)
    none, there = np.zeros((60, 0), dtype=bool), torch.ones(60, 1, dtype=torch.bool)
    if rows >= 14:
        require_weight(weights, torch.ones_like(weights), there, none, 14)
    else:
        with pytest.raises(FewShown):
            require_weight(weights, torch.ones_like(weights), there, none, 14)


@given(st.integers(0, 10**6))
def test_exposures_of_all_sizes_pass_and_a_point_that_hides_most_rows_does_not(seed):
    """What is unlike at any point is the site's own; what the server adds to it is bounded."""
    draw = torch.Generator().manual_seed(seed)
    x, size = torch.randn(2, 200, 1, generator=draw).double()
    exposure = (2 * size).exp()
    none, there = np.zeros((200, 0), dtype=bool), torch.ones(200, 1, dtype=torch.bool)
    require_weight(exposure * (0.1 * x).exp(), exposure, there, none, 14)
    with pytest.raises(FewShown):
        require_weight(exposure * (300 * x).exp(), exposure, there, none, 14)
