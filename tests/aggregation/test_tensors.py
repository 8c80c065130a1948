"""The one aggregation: lists and generators agree, and what is converted is so piece by piece."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.aggregation import RULES, aggregate, aggregate_tensors
from fedbary.aggregation.sums import PIECE
from fedbary.aggregation.tensors import Converted
from fedbary.gaussian import Posterior

DTYPES = [torch.float16, torch.float32, torch.float64, torch.complex64]


@st.composite
def posteriors(draw):
    """Clients of one random layout: Gaussians, points, buffers, of any shape and order."""
    kinds = draw(st.lists(st.sampled_from(["gaussian", "point", "buffer"]), min_size=1, max_size=4))
    shapes = [tuple(draw(st.lists(st.integers(0, 3), max_size=2))) for _ in kinds]
    dtypes = [draw(st.sampled_from(DTYPES[:3] if kind == "gaussian" else DTYPES)) for kind in kinds]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def client():
        mean, log_var = {}, {}
        for k, (kind, shape, dtype) in enumerate(zip(kinds, shapes, dtypes, strict=True)):
            if kind == "buffer":
                mean[f"{k}"] = torch.randint(-9, 9, shape, generator=generator)
                continue
            mean[f"{k}"] = torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
            if kind == "gaussian":
                log_var[f"{k}"] = mean[f"{k}"].sin() - 4
        return Posterior(mean, log_var)

    return [client() for _ in range(draw(st.integers(1, 20)))]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@given(clients=posteriors())
def test_a_generator_of_posteriors_aggregates_as_their_list_does(rule, clients):
    if rule == "MultiKrum" and len(clients) < 7:
        clients = clients[:1]
    weights = [1.0 + k for k in range(len(clients))]
    listed = aggregate(rule, clients, weights)
    one_by_one = aggregate(rule, (client for client in clients), weights)
    for part in ("mean", "log_var"):
        first, second = getattr(listed, part), getattr(one_by_one, part)
        assert list(first) == list(second)
        for name, tensor in first.items():
            assert tensor.dtype == second[name].dtype and tensor.shape == second[name].shape
            assert torch.equal(tensor, second[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if getattr(rule, "add", 0)])
@pytest.mark.parametrize("clients", [1, 16, 37])
def test_what_is_added_in_place_is_the_weighted_sum_of_coordinates(name, clients):
    generator = torch.Generator().manual_seed(0)

    def tensors():
        mean = torch.randn(PIECE + 3, generator=generator)
        return {"w_mean": mean, "w_log_var": 10 * torch.randn(len(mean), generator=generator)}

    states = [tensors() for _ in range(clients)]
    weights = [1.0 + k for k in range(clients)]
    plain = replace(RULES[name], add=None)
    expected = aggregate_tensors(plain, states, weights)
    found = aggregate_tensors(RULES[name], states, weights, least_dtype=torch.float32)
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("ratio", [None, 2.0])
def test_what_is_converted_is_never_held_whole(rule, ratio):
    asked = []

    def log_var(std):
        asked.append(std.numel())
        return 2 * std.log()

    generator = torch.Generator().manual_seed(0)
    stds = [torch.rand(PIECE + 5, generator=generator) + 0.1 for _ in range(3)]
    mean = torch.randn(PIECE + 5, generator=generator)
    held = [{"w_mean": mean, "w_log_var": std} for std in stds]
    lazy = [Converted(tensors, {"w_log_var": log_var}) for tensors in held]
    result = aggregate_tensors(RULES[rule], lazy, [1, 2, 3], ratio)
    assert max(asked) <= PIECE and sum(asked) >= 3 * (PIECE + 5)
    whole = [dict(tensors) for tensors in lazy]
    for key, tensor in aggregate_tensors(RULES[rule], whole, [1, 2, 3], ratio).items():
        torch.testing.assert_close(result[key], tensor, rtol=1e-6, atol=1e-6)


def test_the_result_lies_where_it_is_told_to():
    made = []

    def empty(like, dtype):
        made.append(torch.full(like.shape, torch.nan, dtype=dtype))
        return made[-1]

    clients = [{"a": torch.ones(3) * k, "b_mean": torch.ones(2), "b_log_var": torch.zeros(2)}
               for k in (1, 3)]  # fmt: skip
    result = aggregate_tensors(RULES["WB"], clients, [1, 1], empty=empty)
    assert {t.data_ptr() for t in result.values()} == {t.data_ptr() for t in made}
    assert all(tensor.isfinite().all() for tensor in made)


def test_a_log_variance_without_its_mean_is_named():
    with pytest.raises(ValueError, match="'w_log_var' has no 'w_mean'"):
        aggregate_tensors(RULES["WB"], [{"w_log_var": torch.zeros(1)}], [1])
