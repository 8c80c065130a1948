"""Pooled draws: as the moments of a population drawn number by number, and FKLB in the limit."""

import numpy as np
import pytest
import torch
from scipy import stats

from fedbary.aggregation import aggregate
from fedbary.gaussian import Posterior
from fedbary.methods import Reply, Server
from fedbary.methods.ppa import PPA

MEANS, VARS, SIZES = [0.0, 2.0, -1.0], [1.0, 0.25, 1e-4], [50.0, 30.0, 20.0]


def replies(weights, dtype=torch.float32, clients=3):
    return [
        Reply(
            f"site/{k}", SIZES[k],
            {
                "w_mean": torch.full((weights,), MEANS[k], dtype=dtype),
                "w_log_var": torch.full((weights,), VARS[k], dtype=dtype).log(),
                "point": torch.tensor(MEANS[k], dtype=dtype),
                "steps": torch.tensor(k),
            },
        )
        for k in range(clients)
    ]  # fmt: skip


def pooled(sent, draws, seed=0):
    model, state = PPA(draws=draws).aggregate(Server(sent[0].tensors, {}, 1, seed), sent)
    assert not state and list(model) == list(sent[0].tensors)
    return model


@pytest.mark.parametrize("draws", [10, 11, 40])
def test_moments_are_distributed_as_those_of_numbers_drawn_one_by_one(draws):
    """The two-sample test of Kolmogorov and Smirnov over 20,000 weights of the same Gaussians."""
    weights, rng = 20_000, np.random.default_rng(1)
    model = pooled(replies(weights, torch.float64), draws)
    shares = np.array(SIZES) / sum(SIZES)
    drawn = np.concatenate(
        [
            rng.normal(m, np.sqrt(v), (int(draws * w + 1e-9), weights))
            for m, v, w in zip(MEANS, VARS, shares, strict=True)
        ]
    )
    for found, true in (
        (model["w_mean"], drawn.mean(0)),
        (model["w_log_var"].exp(), drawn.var(0, ddof=1)),
        (model["w_mean"] * model["w_log_var"], drawn.mean(0) * np.log(drawn.var(0, ddof=1))),
    ):
        assert stats.ks_2samp(found.numpy(), true).pvalue > 0.001


def test_it_goes_to_the_forward_kl_barycentre_as_draws_grow():
    sent = replies(500, torch.float64)
    posteriors = [Posterior.from_state_dict(reply.tensors) for reply in sent]
    limit = aggregate("FKLB", posteriors, SIZES).state_dict()
    for draws in (100, 10_000, 1_000_000):
        model = pooled(sent, draws)
        gap = (model["w_mean"] - limit["w_mean"]).square().mean().sqrt()
        assert 0.5 < gap * draws**0.5 / 0.8 < 1.2  # the mean variance within clients is 0.575
        assert (model["w_log_var"] - limit["w_log_var"]).abs().max() < 10 / draws**0.5
    assert torch.equal(model["point"], limit["point"]) and torch.equal(
        model["steps"], limit["steps"]
    )


def test_draws_differ_by_round_client_and_weight_and_not_by_order():
    sent = replies(1000)
    one, other = pooled(sent, 1000, 5), pooled(sent, 1000, 6)
    assert not torch.isclose(one["w_mean"], other["w_mean"]).any()
    backwards = pooled(sent[::-1], 1000, 5)
    torch.testing.assert_close(one, backwards)
    twins = [Reply(name, 1.0, sent[0].tensors) for name in ("a", "b")]
    spread = pooled(twins, 1000)["w_mean"].std()
    assert spread == pytest.approx(1000**-0.5, rel=0.15)  # √2 of it if both drew alike
    assert one["w_mean"].unique().numel() > 900


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("clients", "draws"), [(1, 2), (3, 2), (3, 1000)])
def test_few_draws_and_extreme_variances_are_sound(dtype, clients, draws):
    sent = [
        Reply(r.client, r.weight, {**r.tensors, "w_log_var": torch.full((50,), lv, dtype=dtype)})
        for r, lv in zip(replies(50, dtype), (-40.0, 40.0, -40.0), strict=True)
    ][:clients]
    model = pooled(sent, draws)
    assert all(tensor.isfinite().all() for tensor in model.values() if tensor.dtype == dtype)
    assert model["w_log_var"].abs().max() <= 39.7
