"""Changes along a chart: the rule itself where all reply to the model of now, always a Gaussian."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.aggregation import RULES, Rule, aggregate_tensors
from fedbary.aggregation.arriving import LEEWAY, Change, along, parts_of
from fedbary.errors import SettingError

CHARTS = sorted(name for name, rule in RULES.items() if isinstance(rule, Rule) and rule.is_mean)


def network(rng, spread=1.0):
    """A model with a Gaussian tensor, a plain one, a running variance and a counter."""
    wide = {"dtype": torch.float64}
    return {
        "w_mean": torch.tensor(spread * rng.standard_normal(6), **wide),
        "w_log_var": torch.tensor(rng.uniform(-9, 4, 6), **wide),
        "bias": torch.tensor(rng.standard_normal(3), **wide),
        "running_var": torch.tensor(rng.uniform(0.01, 3, 3), **wide),
        "count": torch.tensor(rng.integers(0, 100)),
    }


@st.composite
def arrivals(draw):
    """Draw a model, what clients were sent and replied, and parts that sum to at most 1."""
    rng = draw(st.integers(0, 2**32 - 1).map(np.random.default_rng))
    count = draw(st.integers(1, 5))
    parts = rng.dirichlet(np.ones(count + 1))[:count]
    changes = [Change(network(rng), network(rng), float(part)) for part in parts]
    return network(rng), changes


@pytest.mark.slow
@pytest.mark.parametrize("rule", CHARTS)
@given(st.integers(0, 2**32 - 1).map(np.random.default_rng), st.integers(1, 5))
def test_replies_of_all_to_the_model_of_now_are_the_rule(rule, rng, count):
    model, replies = network(rng), [network(rng) for _ in range(count)]
    parts = rng.dirichlet(np.ones(count))
    parts = [*parts[:-1], 1 - math.fsum(parts[:-1])]
    found = along(
        RULES[rule], model, [Change(model, q, a) for q, a in zip(replies, parts, strict=True)]
    )
    expected = aggregate_tensors(RULES[rule], replies, parts)
    assert list(found) == list(model)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("rule", CHARTS)
@given(arrivals())
def test_variances_stay_positive_and_near_those_that_they_come_from(rule, drawn):
    model, changes = drawn
    found = along(RULES[rule], model, changes, ["running_var"])
    held = torch.stack([model["w_log_var"], *(change.found["w_log_var"] for change in changes)])
    low, high = held.amin(0) - LEEWAY, held.amax(0) + LEEWAY
    assert (found["w_log_var"] >= low - 1e-9).all() and found["w_mean"].isfinite().all()
    if rule != "FKLB":  # there means that lie apart are variance
        assert (found["w_log_var"] <= high + 1e-9).all()
    assert (found["running_var"] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("rule", CHARTS)
@given(arrivals())
def test_the_order_of_the_replies_does_not_matter(rule, drawn):
    model, changes = drawn
    one, other = (along(RULES[rule], model, order) for order in (changes, changes[::-1]))
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-7, atol=1e-7)


@given(arrivals())
def test_point_weights_go_along_the_changes(drawn):
    model, changes = drawn
    found = along(RULES["FedAvg"], model, changes)
    step = sum(c.part * (c.found["bias"] - c.sent["bias"]) for c in changes)
    torch.testing.assert_close(found["bias"], model["bias"] + step)


@pytest.mark.slow
@pytest.mark.parametrize("rule", CHARTS)
@given(st.integers(0, 2**32 - 1).map(np.random.default_rng), st.floats(0, 1))
def test_one_reply_to_the_model_of_now_is_mixed_with_it(rule, rng, part):
    """FedAsync's θ ← (1 − α) θ + α q, in the chart."""
    model, reply = network(rng), network(rng)
    found = along(RULES[rule], model, [Change(model, reply, part)])
    expected = aggregate_tensors(RULES[rule], [model, reply], [1 - part, part])
    torch.testing.assert_close(found["w_mean"], expected["w_mean"], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found["w_log_var"], expected["w_log_var"], rtol=1e-9, atol=1e-9)


def test_a_precision_that_would_fall_below_nothing_is_mixed():
    one = {"w_mean": torch.ones(1), "w_log_var": torch.zeros(1)}
    narrow = {"w_mean": torch.ones(1), "w_log_var": torch.tensor([-3.0])}
    found = along(RULES["RKLB"], one, [Change(narrow, one, 0.5)])  # 1 + ½ (1 − e³) < 0
    torch.testing.assert_close(found, one)


def test_magnitudes_of_log_variances_end_where_they_are_told():
    one = {"w_mean": torch.zeros(1), "w_log_var": torch.tensor([50.0])}
    assert along(RULES["WB"], one, [Change(one, one, 1.0)], (), 39.0)["w_log_var"] == 39


@pytest.mark.parametrize("rule", sorted(RULES.keys() - set(CHARTS)))
def test_other_rules_are_refused(rule):
    one = {"w_mean": torch.zeros(1), "w_log_var": torch.zeros(1)}
    with pytest.raises(SettingError, match="a rule that is a mean in its chart"):
        along(RULES[rule], one, [Change(one, one, 1.0)])


@given(st.lists(st.tuples(st.floats(0.01, 9), st.floats(0, 3)), min_size=1, max_size=6))
def test_parts_sum_to_at_most_one_and_are_the_shares_where_these_do(drawn):
    shares, weights = map(list, zip(*drawn, strict=True))
    parts = parts_of(shares, weights)
    assert math.fsum(parts) <= 1 + 1e-12
    if math.fsum(shares) <= 1 and math.fsum(s * w for s, w in drawn) <= 1:
        assert parts == [s * w for s, w in drawn]
