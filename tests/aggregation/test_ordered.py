"""Columns in ascending order, by a network or by a sort, are the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbary.aggregation.robust import ordered


@given(
    stack=arrays(
        st.sampled_from([np.float32, np.float64]),
        st.tuples(st.integers(1, 40), st.integers(0, 7)),
        elements=st.floats(width=32),
    )
)
def test_columns_are_those_of_a_sort_also_with_numbers_that_are_not_finite(stack):
    before = stack.copy()
    np.testing.assert_array_equal(np.stack(ordered(stack)), np.sort(stack, axis=0))
    np.testing.assert_array_equal(stack, before)


@pytest.mark.parametrize("clients", range(1, 13))
def test_a_network_sorts_every_column_of_zeros_and_ones_and_so_whatever_there_is(clients):
    columns = np.arange(2**clients)
    stack = (columns >> np.arange(clients)[:, None] & 1).astype(np.float32)
    np.testing.assert_array_equal(np.stack(ordered(stack)), np.sort(stack, axis=0))
