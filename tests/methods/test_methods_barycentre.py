"""The barycentre is the rule, then heavy ball on the means, not on scales and buffers."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from fedbary.aggregation import RULES, Rule, aggregate
from fedbary.aggregation.sums import check_values, value_limit
from fedbary.gaussian import Posterior
from fedbary.methods import Reply, Server, method_named
from fedbary.methods.barycentre import Barycentre
from fedbary.strategies import RKLB, PosteriorStrategy, strategy_for


def model(seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return {
        "w_mean": torch.randn(2, 3, generator=generator).to(dtype),
        "w_log_var": torch.randn(2, 3, generator=generator).to(dtype) - 4,
        "bias": torch.randn(3, generator=generator).to(dtype),
        "bn.running_mean": torch.randn(2, generator=generator).to(dtype),
        "bn.running_var": torch.rand(2, generator=generator).to(dtype),
        "steps": torch.tensor(seed),
    }


def replies(count, first=0):
    return [Reply(str(k), 1.0 + k, model(first + k)) for k in range(count)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("ratio", [None, 1.5])
def test_without_momentum_it_is_the_rule(rule, ratio):
    sent = replies(7)
    method = Barycentre(rule, max_precision_ratio=ratio)
    found, state = method.aggregate(Server(model(99), {}), sent)
    posteriors = [Posterior.from_state_dict(reply.tensors) for reply in sent]
    expected = aggregate(rule, posteriors, [reply.weight for reply in sent], ratio).state_dict()
    assert not state and list(found) == list(expected)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@given(
    beta=st.floats(0.01, 0.99),
    rule=st.sampled_from(sorted(RULES)),
    rounds=st.integers(1, 5),
    clients=st.sampled_from([1, 7]),
)
def test_means_and_points_follow_the_heavy_ball_and_nothing_else_does(beta, rule, rounds, clients):
    plain, moving = Barycentre(rule), Barycentre(rule, server_momentum=beta)
    held, state, velocity = model(1000), {}, {"w_mean": 0, "bias": 0}
    for t in range(rounds):
        sent = replies(clients, 10 * t)
        target, _ = plain.aggregate(Server(held, {}), sent)
        after, state = moving.aggregate(Server(held, state), sent)
        for key in held:
            if key in velocity:
                velocity[key] = beta * velocity[key] + target[key] - held[key]
                torch.testing.assert_close(after[key], held[key] + velocity[key])
            else:
                assert torch.equal(after[key], target[key])
        held = after


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_step_that_overflows_is_not_taken_and_forgotten(dtype):
    """Infinity stayed in the velocity, and in the global model for ever."""
    most, said = 0.9 * min(torch.finfo(dtype).max, value_limit(dtype, False)), []
    method, state = Barycentre("FedAvg", server_momentum=0.9), {}
    held = {"w": torch.tensor([-most], dtype=dtype)}
    far = [Reply("1", 1, {"w": -held["w"]})]
    for _ in range(3):
        held, state = method.aggregate(Server(held, state, warn=said.append), far)
        check_values(held["w"], False)
    assert said and "'w'" in said[0] and "momentum" in said[0]
    for _ in range(300):
        half = [Reply("1", 1, {"w": held["w"] / 2})]
        held, state = method.aggregate(Server(held, state, warn=said.append), half)
    assert abs(held["w"]) < 1e-6 * most


def test_a_momentum_of_infinity_from_a_checkpoint_is_forgotten_with_a_warning():
    method = Barycentre("FedAvg", server_momentum=0.5)
    held, state = {"w": torch.tensor([1.0])}, {"w": torch.tensor([float("inf")])}
    sent = [Reply("1", 1, {"w": torch.tensor([3.0])})]
    with pytest.warns(UserWarning, match="momentum starts anew"):
        first, state = method.aggregate(Server(held, state), sent)
    assert first["w"] == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for expected in (3, 3 + 0.5 * 2):
            after, state = method.aggregate(Server(held, state), sent)
            assert after["w"] == expected


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"server_momentum": 1.0}, "server_momentum"),
        ({"max_precision_ratio": 0.5}, "max_precision_ratio"),
        ({"rule": "MultiKrum", "trim_fraction": 0.5}, "trim_fraction"),
        ({"rule": "Mean"}, "rule: 'Mean'.*RKLB"),
    ],
)
def test_what_is_out_of_range_is_refused(parameters, named):
    refused(named, Barycentre, **parameters)
    refused(named, PosteriorStrategy, **parameters)


def test_a_rule_of_one_s_own_needs_no_registry():
    own = Rule("Own", lambda m, lv: (m, (-lv).exp()), lambda m, p: (m, -p.log()))
    found, _ = Barycentre(own).aggregate(Server(model(9), {}), replies(3))
    expected = aggregate(own, [Posterior.from_state_dict(model(k)) for k in range(3)], [1, 2, 3])
    assert torch.equal(found["w_log_var"], expected.log_var["w"])
    assert PosteriorStrategy(rule=own).rule is own


def test_a_strategy_of_a_rule_is_the_method_s_under_that_rule():
    assert RKLB(server_momentum=0.5).method == Barycentre("RKLB", server_momentum=0.5)
    assert strategy_for("barycentre")(rule="WB").rule is RULES["WB"]
    assert method_named("barycentre") is Barycentre
