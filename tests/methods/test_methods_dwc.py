"""Consolidation is exact in a round where posteriors factorise, and counts the prior once."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_gaussian import (
    Linear,
    assert_is,
    clients,
    exact_fit,
    independent,
    one_round,
    posterior_of_all,
    rounds,
    start,
)

from fedbary.gaussian import Factor, Posterior
from fedbary.methods import Local, Reply, Server
from fedbary.methods.dwc import DWC


def states(m, lv, dtype=torch.float64):
    return [
        {"w_mean": a.to(dtype), "w_log_var": b.to(dtype), "point": a.sum().to(dtype)}
        for a, b in zip(m, lv, strict=True)
    ]


def consolidated(sent, model=None, state=None, **parameters):
    replies = [Reply(str(k), 1.0 + k, tensors) for k, tensors in enumerate(sent)]
    return DWC(**parameters).aggregate(Server(model or sent[0], state or {}), replies)[0]


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 6),
    prior_std=st.sampled_from([0.3, 1.0, 5.0]),
    kl_weight=st.sampled_from([1.0, 0.1]),
)
@settings(max_examples=20)
def test_one_round_is_the_posterior_of_all_data(seed, count, prior_std, kl_weight):
    """Of any number of clients of any sizes, features orthogonal at each."""
    data, method = independent(clients(seed, count)), DWC(prior_std=prior_std)
    model, state = rounds(method, data, [range(count)], kl_weight=kl_weight)
    assert_is(model, *posterior_of_all(data, prior_std, kl_weight), 1e-9)
    assert [float(n) for n in state.values()] == [sum(len(y) for _, y in data)]


def slow_fit(local):
    """The exact optimum, but for log-variances, which 68 steps of Adam's 0.01 take no further."""
    model = local.model
    before = model.weight_log_var.detach().clone()
    exact_fit(local)
    move = (model.weight_log_var.detach() - before).clamp(-0.68, 0.68)
    model.weight_log_var.data = before + move
    return {}


@pytest.mark.parametrize("prior", ["normal", "global"])
def test_over_rounds_the_variances_stay_those_of_all_data(prior):
    """Trap: a client that begins at the product's width has to widen it tenfold every round."""
    data, method = independent(clients(0, 10)), DWC(prior=prior)
    model, state = start(method, data)
    _, truth = posterior_of_all(data)
    gaps = []
    for _ in range(12):
        model, state = one_round(method, model, state, data, range(10), slow_fit)
        gaps.append(float((model["weight_log_var"] - truth.log()).mean()))
    if prior == "normal":
        assert abs(gaps[-1]) < 0.05
    else:  # the data count anew each round, which twelve times narrow by a factor of twelve
        assert gaps[-1] > -math.log(12) - 0.5


def test_until_a_round_counts_the_start_is_no_prior_and_is_left_as_it_is():
    """Trap: after a skipped round 1 the untrained start was a prior, a precision of 1097."""
    model = states(torch.full((1, 3), 0.7), torch.full((1, 3), -7.0), torch.float32)[0]
    for prior in ("normal", "global"):
        method = DWC(prior=prior)
        assert method.send(Server(model, {}, round=2), "a").keys() == model.keys()
        found = consolidated(states(torch.zeros(1, 3), torch.zeros(1, 3)), model, prior=prior)
        torch.testing.assert_close(found["w_log_var"], torch.zeros(3))


@given(st.floats(0.01, 1.0), st.floats(-20.0, 3.0))
def test_a_client_begins_with_its_part_of_what_the_data_said(part, log_var):
    method, seen = DWC(prior_std=5.0), []

    def spy(local):
        seen.append(local.model.weight_log_var.detach().clone())
        return {}

    data = [(torch.ones(100, 2).double(), torch.ones(100).double())]
    model, _ = start(method, data)
    model["weight_log_var"].fill_(log_var)
    one_round(method, model, {"counted/examples": torch.tensor(100 / part)}, data, [0], spy)
    expected = 0.04 + max(0.0, math.exp(-log_var) - 0.04) * part
    torch.testing.assert_close(seen[0].exp(), torch.full((2,), 1 / expected).double(), rtol=1e-5,
                               atol=0)  # fmt: skip


def test_under_the_last_posterior_new_data_of_each_round_add_up():
    """Two rounds with two halves of the data are one with all of it."""
    data, method = independent(clients(0, 4)), DWC(prior="global", prior_std=0.5)
    model, state = rounds(method, data[:2], [range(2)])
    fitted = []
    for x, y in data[2:]:
        network = Linear(x.shape[1])
        exact_fit(Local(network, x, y, prior=Factor.of(Posterior.from_state_dict(model))))
        fitted.append({name: t.detach() for name, t in network.state_dict().items()})
    model = consolidated(fitted, model, state, prior="global", prior_std=0.5)
    assert_is(model, *posterior_of_all(data, 0.5), 1e-9)


@pytest.mark.parametrize("clients", [1, 2, 50])
def test_clients_that_learned_nothing_leave_the_prior(clients):
    m, lv = torch.zeros(clients, 3), torch.full((clients, 3), 2 * math.log(0.7))
    model = consolidated(states(m, lv), prior_std=0.7)
    torch.testing.assert_close(model["w_mean"], torch.zeros(3).double())
    torch.testing.assert_close(model["w_log_var"].float(), lv[0])


def test_one_client_is_its_own_aggregate_and_points_are_averaged_by_size():
    m, lv = torch.randn(2, 3), -torch.rand(2, 3)
    sent = states(m, lv, torch.float32)
    model = consolidated(sent[:1])
    for name, tensor in sent[0].items():
        torch.testing.assert_close(model[name], tensor)
    both = consolidated(sent)
    torch.testing.assert_close(both["point"], (sent[0]["point"] + 2 * sent[1]["point"]) / 3)
    assert {t.dtype for t in both.values()} == {torch.float32}


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    prior=st.sampled_from(["normal", "global"]),
)
def test_no_variance_is_above_the_prior_s_whatever_is_admitted(seed, count, dtype, prior):
    """A variance above the prior's, which data do not make, gave precisions below 0."""
    generator = torch.Generator().manual_seed(seed)
    lv = 80 * torch.rand(count, 5, generator=generator) - 40
    sent = states(10 * torch.randn(count, 5, generator=generator), lv, dtype)
    held = states(torch.zeros(1, 5), torch.full((1, 5), -3.0), dtype)[0]
    counted = {"counted/examples": torch.tensor(9.0)}
    model = consolidated(sent, held, counted, prior=prior, prior_std=2.0)
    most = -3.0 if prior == "global" else 2 * math.log(2.0)
    assert all(tensor.isfinite().all() for tensor in model.values())
    assert (model["w_log_var"] <= most + 1e-5).all() and (model["w_log_var"] > -39.7).all()
