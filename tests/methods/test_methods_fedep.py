"""FedEP ends at the posterior of all data, the prior shared out; FedSEP where sites are exact."""

import pytest
import torch
from linear_gaussian import (
    NOISE_VAR,
    assert_is,
    clients,
    independent,
    one_round,
    posterior_of_all,
    start,
)

from fedbary.errors import SettingError
from fedbary.gaussian import Factor, Posterior
from fedbary.methods import Reply, Server
from fedbary.methods._sites import factors
from fedbary.methods.bayesadmm import BayesADMM
from fedbary.methods.fedep import FedEP
from fedbary.methods.fedsep import FedSEP
from fedbary.methods.pvi import PVI

DECAY = 0.02


def prior_std(data, kl_weight=1.0):
    return (DECAY * sum(len(y) for _, y in data) / kl_weight) ** -0.5


@pytest.mark.in_turn
@pytest.mark.parametrize("kl_weight", [1.0, 0.2])
@pytest.mark.parametrize(
    ("server_lr", "server_momentum", "turns"),
    [
        (1.0, 0.0, [[0], [1], [2]]),
        (1.0, 0.0, [[0, 1, 2]]),
        (0.5, 0.9, [[0, 1, 2]]),
        (0.5, 0.5, [[0, 1], [1, 2], [2, 0]]),
    ],
)
def test_fedep_reaches_the_posterior_of_all_data(server_lr, server_momentum, turns, kl_weight):
    """One at a time, all at once, with momentum, and with some away."""
    data, method = clients(0, 3, features=3), FedEP(server_lr, server_momentum, DECAY)
    model, state = start(method, data)
    for number in range(600):
        turn = turns[number % len(turns)]
        model, state = one_round(method, model, state, data, turn, kl_weight=kl_weight)
    assert_is(model, *posterior_of_all(data, prior_std(data, kl_weight), kl_weight))


def test_with_momentum_and_some_away_the_global_factor_is_still_the_product_of_the_sites():
    data, method = clients(1, 4), FedEP(0.3, 0.9, DECAY)
    model, state = start(method, data)
    for number in range(12):
        model, state = one_round(method, model, state, data, [number % 4, (number + 1) % 4])
        first, *others = factors("site", state).values()
        for site in others:
            first = first * site
        found = Factor.of(Posterior.from_state_dict(model))
        torch.testing.assert_close(found.precision["weight"], first.precision["weight"])
        torch.testing.assert_close(found.shift["weight"], first.shift["weight"])


@pytest.mark.parametrize("server_lr", [0.3, 1.0])
def test_fedsep_s_error_shrinks_by_one_minus_s_over_k_a_round(server_lr):
    """Features that are orthogonal at each client: what a likelihood adds is exact."""
    data = independent(clients(0, 4, features=3))
    method = FedSEP(server_lr, 0.0, DECAY)
    mean, var = posterior_of_all(data, prior_std(data))
    model, state = one_round(method, *start(method, data), data, range(4))

    def errors(model):
        found = Factor.of(Posterior.from_state_dict(model))
        return found.precision["weight"] - 1 / var, found.shift["weight"] - mean / var

    for _ in range(8):
        before = errors(model)
        model, state = one_round(method, model, state, data, range(4))
        for now, then in zip(errors(model), before, strict=True):
            torch.testing.assert_close(now, (1 - server_lr / 4) * then)


TURNS = [[0, 1, 2, 3], [0, 2], [1], [3, 0], [0, 1, 2, 3], [2]]
"""Who takes part; before the rounds of some, all have replied once."""


def added(data):
    """Return what each client's likelihood and part of the prior add: precision and shift."""
    return [
        (x.square().sum(0) / NOISE_VAR + DECAY * len(y), x.t() @ y / NOISE_VAR) for x, y in data
    ]


def test_fedep_s_sites_follow_what_the_likelihoods_add_with_momentum():
    """u_k ← β u_k + (s/C) (L_k − λ_k), λ_k ← λ_k + u_k, of those that take part."""
    data = independent(clients(0, 4, features=3))
    model, state = start(FedEP(0.6, 0.7, DECAY), data)
    expected = [[torch.zeros(3).double() for _ in range(2)] for _ in data]
    velocity = [[torch.zeros(3).double() for _ in range(2)] for _ in data]
    for turn in TURNS:
        model, state = one_round(FedEP(0.6, 0.7, DECAY), model, state, data, turn)
        for k in turn:
            for part, whole in enumerate(added(data)[k]):
                step = 0.6 / len(turn) * (whole - expected[k][part])
                velocity[k][part] = 0.7 * velocity[k][part] + step
                expected[k][part] = expected[k][part] + velocity[k][part]
    for k, (precision, shift) in enumerate(expected):
        site = factors("site", state)[f"site/{k}"]
        torch.testing.assert_close(site.precision["weight"], precision)
        torch.testing.assert_close(site.shift["weight"], shift)


def test_fedsep_follows_what_the_likelihoods_add_beyond_their_shares_with_momentum():
    """u ← β u + (s/C) Σ_k (L_k − w_k η_g), η_g ← η_g + u, w_k the share of those ever heard."""
    data = independent(clients(0, 4, features=3))
    method = FedSEP(0.6, 0.7, DECAY)
    model, state = start(method, data)
    sizes = [len(y) for _, y in data]
    expected, velocity = [torch.zeros(3).double()] * 2, [torch.zeros(3).double()] * 2
    for number, turn in enumerate(TURNS):
        model, state = one_round(method, model, state, data, turn)
        for part in range(2):
            moves = [
                added(data)[k][part] - (number > 0) * sizes[k] / sum(sizes) * expected[part]
                for k in turn
            ]
            velocity[part] = 0.7 * velocity[part] + 0.6 / len(turn) * sum(moves)
        expected = [now + u for now, u in zip(expected, velocity, strict=True)]
    found = Factor.of(Posterior.from_state_dict(model))
    torch.testing.assert_close(found.precision["weight"], expected[0])
    torch.testing.assert_close(found.shift["weight"], expected[1])


@pytest.mark.parametrize("method", [FedEP(), FedSEP(), PVI(), BayesADMM()])
def test_deterministic_tensors_are_averaged_by_size(method):
    gaussian = {"w_mean": torch.ones(2), "w_log_var": torch.zeros(2)}
    replies = [Reply(str(n), n, {**gaussian, "bias": torch.full((2,), n)}) for n in (1.0, 3.0)]
    model = {**gaussian, "bias": torch.zeros(2)}
    after, _ = method.aggregate(Server(model, method.start(model)), replies)
    torch.testing.assert_close(after["bias"], torch.full((2,), 2.5))


def test_fedsep_reaches_it_with_the_paper_s_momentum_and_some_away():
    data = independent(clients(5, 4, features=3))
    method = FedSEP(weight_decay=DECAY)
    model, state = start(method, data)
    for _ in range(400):
        model, state = one_round(method, model, state, data, range(4))
    assert_is(model, *posterior_of_all(data, prior_std(data)))
    for _ in range(5):  # at the fixed point all L_k are in balance: that two are away tips it
        model, state = one_round(method, model, state, data, [0, 2])
    mean, var = posterior_of_all(data, prior_std(data))
    assert not torch.allclose(model["weight_log_var"].exp(), var, rtol=1e-3)


def test_fedsep_s_state_does_not_grow_with_the_clients_but_by_a_number():
    data, method = clients(1, 4), FedSEP(weight_decay=DECAY)
    model, state = start(method, data)
    for k in range(4):
        model, state = one_round(method, model, state, data, [k])
        assert sum(tensor.numel() for tensor in state.values()) == 4 * 4 + k + 1
    sent = method.send(Server(model, state), "site/1")
    assert sent["others/examples"] == sum(len(data[k][1]) for k in (0, 2, 3))
    assert method.send(Server(model, state), "new")["others/examples"] == sum(
        len(y) for _, y in data
    )


@pytest.mark.parametrize("method", [FedEP, FedSEP])
def test_without_a_weight_of_the_kl_no_cavity_would_act(method):
    data = clients(1, 2)
    with pytest.raises(SettingError, match="kl_weight"):
        one_round(method(), *start(method(), data), data, [0], kl_weight=0.0)
