"""Integer and bool buffers: the rounded mean or the median, exact to the ends of their dtypes."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedbary.aggregation import RULES, RobustRule, aggregate
from fedbary.aggregation.tensors import aggregate_buffer
from fedbary.gaussian import Posterior
from fedbary.strategies import CONVENTIONS, aggregate_records

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
PLAIN, ROBUST = RULES["FedAvg"], RULES["Median"]


@st.composite
def federations(draw):
    """Draw buffers with values at the ends of their dtype, and weights."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    clients = draw(st.integers(1, 9))
    values = draw(arrays.arrays(dtype, (clients, 4)))
    exponents = st.integers(-300, 0).map(lambda power: 10.0**power)
    weights = draw(st.lists(exponents | st.just(1.0), min_size=clients, max_size=clients))
    shares = [weight / sum(weights) for weight in weights]
    return values, shares


def tensors(values):
    return [torch.from_numpy(client.copy()) for client in values]


@pytest.mark.slow
@given(federation=federations())
def test_the_mean_is_that_of_exact_arithmetic(federation):
    values, shares = federation
    found = aggregate_buffer(PLAIN, tensors(values), shares).numpy()
    assert found.dtype == values.dtype
    heaviest = values[int(np.argmax(shares))]
    for column, result in enumerate(found):
        exact = [int(value) for value in values[:, column]]
        parts = [Fraction(share) for share in shares]
        mean = sum(part * value for part, value in zip(parts, exact, strict=True)) / sum(parts)
        spread = sum(
            share * abs(value - int(heaviest[column]))
            for share, value in zip(shares, exact, strict=True)
        )
        assert abs(int(result) - mean) <= Fraction(1, 2) + Fraction(1e-14 * (1 + spread))


@pytest.mark.slow
@given(federation=federations())
def test_equal_buffers_stay_what_they_are(federation):
    values, shares = federation
    same = [values[0]] * len(values)
    for rule in (PLAIN, ROBUST):
        assert (aggregate_buffer(rule, tensors(same), shares).numpy() == values[0]).all()


@pytest.mark.slow
@given(federation=federations())
def test_the_median_is_the_lower_middle_value(federation):
    values, shares = federation
    found = aggregate_buffer(ROBUST, tensors(values), shares).numpy()
    np.testing.assert_array_equal(found, np.sort(values, 0)[(len(values) - 1) // 2])


@pytest.mark.parametrize("max_precision_ratio", [None, 2])
@pytest.mark.parametrize("rule", RULES)
def test_a_client_of_no_weight_does_not_set_a_buffer(rule, max_precision_ratio):
    """Of the smallest weight it comes first, and its −2⁶³ became the global value."""

    def state(steps, wave):
        return {"steps": torch.tensor([steps]), "wave": torch.tensor([wave]), "w": torch.ones(1)}

    states = [state(-(2**63), 9j), state(7, 2 + 4j), state(9, 4 - 2j)]
    weights = [1e-300, 1.0, 1.0]
    records = [ArrayRecord(s) for s in states]
    by_records = aggregate_records(
        RULES[rule], records, weights, CONVENTIONS["fedbary"], max_precision_ratio
    ).to_torch_state_dict()
    posteriors = [Posterior.from_state_dict(s) for s in states]
    by_posteriors = aggregate(rule, posteriors, weights, max_precision_ratio).mean
    for result in (by_records, by_posteriors):
        assert result["steps"] == (7 if isinstance(RULES[rule], RobustRule) else 8)
    assert by_records["wave"].dtype == by_posteriors["wave"].dtype == torch.complex64
    torch.testing.assert_close(by_records["wave"], by_posteriors["wave"])
    if not isinstance(RULES[rule], RobustRule):
        torch.testing.assert_close(by_records["wave"], torch.tensor([3 + 1j]))
