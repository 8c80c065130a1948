"""Two levels of barycentres: one level in a chart, groups apart, found groups, hostile clients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from fedbary.aggregation import RULES, aggregate
from fedbary.gaussian import Posterior
from fedbary.methods import Reply, Server
from fedbary.methods.barycentre import Barycentre
from fedbary.methods.hierarchy import OTHERS, Hierarchy

LEVELS = ["AALV", "EAA", "FKLB", "FedAvg", "RKLB", "WB"]


def state(mean, std, dtype=torch.float64):
    """A Gaussian tensor beside a point and a count."""
    mean, std = torch.tensor(mean, dtype=dtype), torch.tensor(std, dtype=dtype)
    points = {"bias": mean[:2] / 2, "count": torch.tensor(3)}
    return {"w_mean": mean, "w_log_var": 2 * std.log(), **points}


MODEL = state([0.0] * 5, [0.1] * 5)


@st.composite
def federations(draw):
    """Draw replies of clients, and each one's group."""
    count = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = [f"site {k}" for k in range(count)]
    replies = [
        Reply(name, float(n), state(rng.normal(0, 3, 5), rng.uniform(0.05, 4, 5)))
        for name, n in zip(names, rng.integers(1, 900, count), strict=True)
    ]
    return replies, {name: draw(st.sampled_from("abc")) for name in names}


def given_groups(groups):
    return ",".join(f"{name}:{group}" for name, group in groups.items())


def assert_same(found, expected, rtol=1e-9):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=rtol, atol=1e-9)


def one_level(rule, replies, weights=None):
    posteriors = [Posterior.from_state_dict(reply.tensors) for reply in replies]
    return aggregate(rule, posteriors, weights or [reply.weight for reply in replies])


@pytest.mark.parametrize("rule", LEVELS)
@given(federation=federations(), by=st.sampled_from(["examples", "equal"]))
@settings(max_examples=12)
def test_the_global_model_is_the_barycentre_of_the_groups(rule, federation, by):
    """By examples it is that of all clients too: two levels are one level."""
    replies, groups = federation
    method = Hierarchy(rule=rule, groups=given_groups(groups), group_weights=by)
    found, held = method.aggregate(Server(MODEL, {}), replies)
    of = {g: [r for r in replies if groups[r.client] == g] for g in sorted({*groups.values()})}
    models = {group: one_level(rule, own) for group, own in of.items()}
    for group, model in models.items():
        assert_same(method.model_of(held, group), model.state_dict())
    weights = [sum(r.weight for r in own) if by == "examples" else 1.0 for own in of.values()]
    points = {name: t for name, t in found.items() if name != "count"}  # counts are rounded twice
    above = aggregate(rule, list(models.values()), weights).state_dict()
    assert_same(points, {name: above[name] for name in points}, rtol=1e-6)
    if by == "examples":
        assert_same(found, Barycentre(rule=rule).aggregate(Server(MODEL, {}), replies)[0], 0.0)
    assert method.groups_of(held) == groups


@pytest.mark.parametrize("rule", ["RKLB", "WB"])
def test_the_weight_of_the_global_model_leads_from_a_group_s_own_to_it(rule):
    replies = [
        Reply("a", 1.0, state([1.0] * 5, [0.5] * 5)),
        Reply("b", 3.0, state([2.0] * 5, [1.0] * 5)),
    ]
    for weight in (0.0, 0.3, 1.0):
        method = Hierarchy(rule=rule, groups="a:a,b:b", global_weight=weight)
        found, held = method.aggregate(Server(MODEL, {}), replies)
        both = [Posterior.from_state_dict(each) for each in (replies[0].tensors, found)]
        expected = aggregate(rule, both, [1 - weight, weight]).state_dict()
        assert_same(method.model_of(held, "a"), expected)


def test_clients_begin_from_their_group_s_model_and_a_group_that_is_silent_keeps_its_own():
    method = Hierarchy(groups="a:x,b:y,c:y")
    assert method.send(Server(MODEL, {}), "a") is MODEL
    replies = [Reply(name, 1.0, state([k + 1.0] * 5, [0.5] * 5)) for k, name in enumerate("abc")]
    model, held = method.aggregate(Server(MODEL, {}), replies)
    after, later = method.aggregate(Server(model, held), replies[:1])
    assert_same(after, replies[0].tensors)
    assert_same(method.model_of(later, "y"), method.model_of(held, "y"))
    for client, group in zip("abc", "xyy", strict=True):
        assert_same(method.send(Server(after, later), client), method.model_of(later, group))
    shown = method.show(Server(after, later), "b")
    assert_same(method.personal(None, shown, {}).model, method.model_of(later, "y"))
    assert method.personal(None, method.show(Server(MODEL, {}), "b"), {}) is None


def test_a_client_without_a_group_is_of_the_others_and_the_server_names_it():
    method, said = Hierarchy(groups="a:x"), []
    replies = [Reply(name, 1.0, state([1.0] * 5, [0.5] * 5)) for name in ("a", "b")]
    model, held = method.aggregate(Server(MODEL, {}, warn=said.append), replies)
    assert method.groups_of(held) == {"a": "x", "b": OTHERS}
    assert len(said) == 1 and "given for b" in said[0]
    method.aggregate(Server(model, held, warn=said.append), replies)
    assert len(said) == 1
    refused("groups.*'b'", lambda: method.aggregate(Server(MODEL, {}), replies[1:]))


@pytest.mark.parametrize(("rule", "points"), [("RKLB", 0), ("FKLB", 0), ("EAA", 0), ("FedAvg", 1)])
def test_planted_groups_are_found_in_any_order_and_late_clients_join_the_nearest(rule, points):
    def reply(k, kind):
        tensors = state([kind * 2.0 + 0.01 * k] * 5, [0.5] * 5)
        if points:
            tensors = {"w": tensors["w_mean"]}
        return Reply(f"site {k}", 1.0 + k, tensors)

    kinds = [0, 1, 1, 0, 1, 0]
    replies = [reply(k, kind) for k, kind in enumerate(kinds)]
    method, model = Hierarchy(rule=rule, groups=2), replies[0].tensors
    _, held = method.aggregate(Server(model, {}), replies[:4])
    found, later = method.aggregate(Server(model, held), replies[::-1])
    assert method.groups_of(later) == {f"site {k}": str(kind + 1) for k, kind in enumerate(kinds)}
    again, other = method.aggregate(Server(model, held), replies)
    assert_same(found, again)
    assert_same(later, other)


@pytest.mark.parametrize("rule", ["RKLB", "WB"])
def test_a_hostile_client_moves_its_own_group_alone_and_the_global_model_as_before(rule):
    """Alone in its group it is all of it; the bound holds the global one as under barycentre."""
    honest = [Reply(name, 5.0, state([1.0] * 5, [0.5] * 5)) for name in "abc"]
    method = Hierarchy(rule=rule, groups="a:x,b:x,c:y,d:z", max_precision_ratio=2.0)
    ends = []
    for value in (-1.0, 9.0):
        lie = Reply("d", 5.0, state([value] * 5, [1e-6] * 5))
        found, held = method.aggregate(Server(MODEL, {}), [*honest, lie])
        assert_same(method.model_of(held, "z"), lie.tensors)
        bounded = Barycentre(rule=rule, max_precision_ratio=2.0)
        assert_same(found, bounded.aggregate(Server(MODEL, {}), [*honest, lie])[0], 0.0)
        ends.append([method.model_of(held, group) for group in "xy"])
    for one, other in zip(*ends, strict=True):
        assert_same(one, other, 0.0)
    assert float(found["w_mean"].max()) <= (3 * 1.0 + 2.0 * 9.0) / 5 + 1e-6


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"groups": "a,,b"}, "groups.*client:group"),
        ({"groups": "a:x,b"}, "groups.*client:group"),
        ({"groups": "a:x,a:y"}, "groups.*client:group"),
        ({"groups": 0}, "groups"),
        ({"mixing": True}, "mixing.*several models"),
        ({"server_momentum": 0.5}, "server_momentum.*several models"),
    ],
)
def test_words_that_do_not_go_are_refused_by_name(words, named):
    refused(named, Hierarchy, **words)


@pytest.mark.parametrize("rule", sorted(RULES.keys() - LEVELS))
def test_a_rule_whose_two_levels_are_not_one_is_refused(rule):
    refused(f"rule: '{rule}'; expected for method=Hierarchy: AALV", Hierarchy, rule=rule)
