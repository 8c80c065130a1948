"""Projection of a client's posterior and the global one, and clusters of posteriors."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from fedbary.aggregation import DIVERGENCES, aggregate
from fedbary.gaussian import Posterior
from fedbary.methods.hierarchy import clustered
from fedbary.predictive.projection import STRENGTHS, projected


def state(mean, var):
    means, variances = (torch.atleast_1d(torch.tensor(v).double()) for v in (mean, var))
    return {"w_mean": means, "w_log_var": variances.log(), "bias": means / 2}


@pytest.mark.parametrize(("rule", "mean", "var"), [("WB", 1.0, 0.5625), ("RKLB", 1.6, 0.4)])
def test_the_two_gaussians_that_everybody_computes(rule, mean, var):
    found = projected(rule, state(0.0, 1.0), state(2.0, 0.25), 1.0)
    assert float(found["w_mean"]) == pytest.approx(mean)
    assert float(found["w_log_var"].exp()) == pytest.approx(var)
    assert float(found["bias"]) == pytest.approx(0.5)


@given(
    st.sampled_from(sorted(DIVERGENCES)),
    st.sampled_from(sorted(STRENGTHS.values())),
    *[st.floats(-3, 3)] * 2,
    *[st.floats(0.05, 5)] * 2,
)
def test_it_is_where_the_weighted_divergences_are_least(rule, strength, m_k, m_g, v_k, v_g):
    own, common = state(m_k, v_k), state(m_g, v_g)
    found = projected(rule, own, common, strength)

    def cost(mean, log_var):
        q = Posterior({"w": found["w_mean"] + mean}, {"w": found["w_log_var"] + log_var})
        to = [Posterior({"w": s["w_mean"]}, {"w": s["w_log_var"]}) for s in (own, common)]
        divergence = DIVERGENCES[rule]
        return strength * divergence(q, to[0]) + divergence(q, to[1])

    around = [cost(*step) for step in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01))]
    assert cost(0, 0) <= min(around) + 1e-12


def test_its_ends_are_the_global_model_and_the_client_s_own():
    own, common = state(0.0, 1.0), state(2.0, 0.25)
    for rule, (strength, end) in itertools.product(DIVERGENCES, [(0.0, common), (1e9, own)]):
        found = projected(rule, own, common, strength)
        assert found.keys() == common.keys()
        for name, tensor in end.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)
    refused("strength", projected, "WB", own, common, -1.0)
    refused("rule", projected, "GAA", own, common, 1.0)


def posteriors(seed, count):
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(count, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
    return [Posterior({"w": m}, {"w": v}) for m, v in zip(*draw, strict=True)]


@pytest.mark.slow
@given(
    st.sampled_from(sorted(DIVERGENCES)), st.integers(0, 999), st.integers(2, 7), st.integers(1, 4)
)
def test_the_cost_of_clusters_never_rises_and_ends_where_nobody_moves(rule, seed, count, clusters):
    clients, weights = posteriors(seed, count), [1.0 + k for k in range(count)]
    found = clustered(rule, clients, weights, min(clusters, count))
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(found.costs))
    for j, centre in enumerate(found.centres):
        held = [k for k, member in enumerate(found.members) if member == j]
        if held:
            own = aggregate(rule, [clients[k] for k in held], [weights[k] for k in held])
            torch.testing.assert_close(centre.mean["w"], own.mean["w"])
            torch.testing.assert_close(centre.log_var["w"], own.log_var["w"])
    for client, member in zip(clients, found.members, strict=True):
        distances = [DIVERGENCES[rule](centre, client) for centre in found.centres]
        assert distances[member] == pytest.approx(min(distances))


@pytest.mark.parametrize("rule", sorted(DIVERGENCES))
def test_one_cluster_is_the_barycentre_and_as_many_as_clients_are_the_clients(rule):
    clients, weights = posteriors(3, 5), [1.0, 2.0, 3.0, 1.0, 1.0]
    (centre,) = clustered(rule, clients, weights, 1).centres
    whole = aggregate(rule, clients, weights)
    torch.testing.assert_close(centre.log_var["w"], whole.log_var["w"])
    assert sorted(clustered(rule, clients, weights, 5).members) == list(range(5))
    assert clustered(rule, clients, weights, 5).costs[-1] == pytest.approx(0, abs=1e-12)


def test_under_wasserstein_it_is_k_means_in_means_and_standard_deviations():
    from sklearn.cluster import KMeans

    clients = posteriors(0, 6)
    points = torch.stack([torch.cat([p.mean["w"], (0.5 * p.log_var["w"]).exp()]) for p in clients])
    found = clustered("WB", clients, [1.0] * 6, 3)
    centres = torch.stack(
        [torch.cat([c.mean["w"], (0.5 * c.log_var["w"]).exp()]) for c in found.centres]
    )
    steady = KMeans(3, init=centres.numpy(), n_init=1).fit(points.numpy())
    assert list(steady.labels_) == list(found.members)  # a fixed point of k-means, of its cost
    assert found.costs[-1] * 6 == pytest.approx(steady.inertia_)


def test_kinds_of_clients_are_told_apart_by_their_variances_too():
    narrow = [
        Posterior({"w": torch.zeros(3)}, {"w": torch.full((3,), -5 - k / 9)}) for k in range(3)
    ]
    wide = [Posterior({"w": torch.zeros(3)}, {"w": torch.full((3,), k / 9)}) for k in range(3)]
    for rule in DIVERGENCES:
        members = clustered(rule, [*narrow, *wide], [1.0] * 6, 2).members
        assert len({*members[:3]}) == len({*members[3:]}) == 1 and members[0] != members[3]


@pytest.mark.parametrize(("rule", "count"), [("EAA", 2), ("WB", 0), ("WB", 4)])
def test_what_cannot_be_clustered_is_refused(rule, count):
    refused("rule|clusters", lambda: clustered(rule, posteriors(0, 3), [1.0] * 3, count))
