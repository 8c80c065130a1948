"""PVI, FedEP and BayesADMM end at the posterior of all data; FedSEP where sites are exact."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_gaussian import (
    NOISE_VAR,
    Linear,
    assert_is,
    assert_same_factor,
    clients,
    exact_fit,
    independent,
    one_round,
    posterior_of_all,
    rounds,
    start,
)
from refusals import refused

from fedbary.aggregation import aggregate
from fedbary.gaussian import Factor, Posterior
from fedbary.inference import Training, local_method
from fedbary.methods import Local, Reply, Server, method_named
from fedbary.methods._sites import LEAST_CAVITY_PRECISION, factors
from fedbary.methods.bayesadmm import BayesADMM
from fedbary.methods.fedep import FedEP
from fedbary.methods.fedsep import FedSEP
from fedbary.methods.pvi import PVI
from fedbary.variational.layers import generator_of


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_one_client_a_round_reaches_the_posterior_of_all_data(correlation):
    data = clients(0, 3, features=3, correlation=correlation)
    model, _ = rounds(PVI(), data, 80 * [[0], [1], [2]])
    assert_is(model, *posterior_of_all(data), of_var=1e-9)


@pytest.mark.parametrize("method", [PVI(prior_std=0.7), PVI(undamped_start=True)])
def test_all_at_once_with_damping_reach_it_too_whatever_the_start(method):
    data = clients(1, 3, features=3)
    model, _ = rounds(method, data, 150 * [range(3)])
    assert_is(model, *posterior_of_all(data, method.prior_std), 1e-5)


@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_an_undamped_start_of_factorising_posteriors_is_the_end(damping):
    data = independent(clients(2, 8))
    for count in (1, 2, 3):  # the second round finds nothing to mend
        method = PVI(damping=damping, undamped_start=True)
        model, _ = rounds(method, data, count * [range(8)])
        assert_is(model, *posterior_of_all(data), 1e-7)


def test_the_global_factor_is_the_prior_times_the_sites_and_a_fixed_point_stays():
    data, method = clients(0, 4), PVI()
    model, state = start(method, data)
    for server_round in range(200):
        turn = [server_round % 4] if server_round % 3 else [0, 2]
        model, state = one_round(method, model, state, data, turn)
        product = Factor.normal(1.0, {"weight": model["weight_mean"]})
        for site in factors("site", state).values():
            product = product * site
        assert_same_factor(Factor.of(Posterior.from_state_dict(model)), product)
    again, _ = one_round(method, model, state, data, [2])
    torch.testing.assert_close(again["weight_mean"], model["weight_mean"], rtol=1e-5, atol=1e-5)


def test_one_client_with_all_data_is_plain_variational_inference():
    data, plain = clients(3, 1), Linear(4)
    model, _ = rounds(PVI(), data, [[0]])
    exact_fit(Local(plain, *data[0], prior=Factor.normal(1.0, {"weight": plain.weight_mean})))
    torch.testing.assert_close(model, dict(plain.state_dict()))


def test_synchronous_rounds_of_damping_one_over_k_are_the_uniform_reverse_kl_barycentre():
    data, method = clients(1, 3), PVI()
    model, state = rounds(method, data, [range(3)])
    replies = []
    for k in range(3):
        network = Linear(4)
        local = Local(network, *data[k], nll=None, inference=exact_fit, training=Training(),
                      prior=1.0, round=2, seed=0)  # fmt: skip
        fitted = method.fit(local, method.send(Server(model, state), f"site/{k}"), {})
        replies.append(Reply(f"site/{k}", 1.0, fitted.reply))
    barycentre = aggregate("RKLB", [Posterior.from_state_dict(r.tensors) for r in replies], [1] * 3)
    model, _ = method.aggregate(Server(model, state), replies)
    torch.testing.assert_close(model["weight_mean"], barycentre.mean["weight"])
    torch.testing.assert_close(model["weight_log_var"], barycentre.log_var["weight"])


def test_a_cavity_that_is_no_density_is_held_above_zero():
    method, seen = PVI(), []

    def spy(local):
        seen.append(local.prior)
        return {}

    model = {"weight_mean": torch.ones(2), "weight_log_var": torch.zeros(2)}
    reply = Reply("a", 1.0, {"weight_mean": torch.ones(2), "weight_log_var": -torch.ones(2) * 5})
    _, state = method.aggregate(Server(model, {}), [reply])
    state = {key: tensor * 2 for key, tensor in state.items()}  # now the quotient is negative
    negative = {key: -tensor for key, tensor in state.items()}
    network = Linear(2)
    local = Local(network, torch.ones(1, 2), torch.ones(1), None, spy, Training(), 1.0, 1, 0)
    sent = method.send(Server(model, {**negative}), "a")
    method.fit(local, sent, {})
    assert seen[0].precision["weight"].min() >= LEAST_CAVITY_PRECISION
    seen.clear()
    tight = {key: t.neg() if "precision" in key else t for key, t in sent.items()}
    method.fit(local, tight, {})
    assert seen[0].precision["weight"].min() >= LEAST_CAVITY_PRECISION


NAMES = ["hospital", "hospital/shift/x", "hospital/shift", "a/b", "a", "", "ü %2F", "site/a"]


def test_no_name_shuts_out_another():
    method, model = PVI(), {"weight_mean": torch.zeros(2), "weight_log_var": torch.zeros(2)}
    state, precision = {}, {}
    for number, name in enumerate(NAMES):
        log_var = torch.full((2,), -1.0 - number)
        reply = Reply(name, 1.0, {"weight_mean": torch.ones(2), "weight_log_var": log_var})
        model, state = method.aggregate(Server(model, state), [reply])
        precision[name] = factors("site", state)[name].precision["weight"]
    assert factors("site", state).keys() == set(NAMES)
    for name, expected in precision.items():
        torch.testing.assert_close(factors("site", state)[name].precision["weight"], expected)
        method.send(Server(model, state), name)


def test_too_little_damping_is_refused_before_it_diverges():
    data, method = clients(0, 3), PVI(damping=0.5)
    model, state = start(method, data)
    refused("damping", one_round, method, model, state, data, range(3))
    one_round(method, model, state, data, range(2))


def test_with_the_project_s_own_inference_it_comes_close():
    """Stochastic VI in place of the closed form: within the noise of its last steps."""
    data, method = clients(0, 3, features=2), method_named("PVI")()

    class Sampled(Linear):
        def forward(self, x):
            std = (x.square() @ self.weight_log_var.exp()).sqrt()
            noise = torch.randn(len(x), generator=generator_of(self), dtype=x.dtype)
            return x @ self.weight_mean + std * noise

    def nll(output, target):
        return 0.5 * (output - target).square().mean() / NOISE_VAR

    model, state = start(method, data)
    for server_round in range(15):
        lr = 3e-3 if server_round < 10 else 3e-4
        replies = []
        for k, (x, y) in enumerate(data):
            training = Training(100, len(x), lr=lr, log_var_lr=0.01, kl_weight=1.0)
            local = Local(Sampled(2), x, y, nll, local_method("variational"), training, 1.0,
                          server_round + 1, 100 * server_round + k)  # fmt: skip
            fitted = method.fit(local, method.send(Server(model, state), str(k)), {})
            replies.append(Reply(str(k), len(x), fitted.reply))
        model, state = method.aggregate(Server(model, state), replies)
    mean, var = posterior_of_all(data)
    assert ((model["weight_mean"] - mean).abs() < 0.3 * var.sqrt()).all()
    torch.testing.assert_close(model["weight_log_var"], var.log(), rtol=0, atol=0.15)


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
    model, _ = rounds(method, data, 600 // len(turns) * turns, kl_weight=kl_weight)
    assert_is(model, *posterior_of_all(data, prior_std(data, kl_weight), kl_weight))


def test_with_momentum_and_some_away_the_global_factor_is_still_the_product_of_the_sites():
    data, method = clients(1, 4), FedEP(0.3, 0.9, DECAY)
    model, state = start(method, data)
    for number in range(12):
        model, state = one_round(method, model, state, data, [number % 4, (number + 1) % 4])
        first, *others = factors("site", state).values()
        for site in others:
            first = first * site
        assert_same_factor(Factor.of(Posterior.from_state_dict(model)), first)


@pytest.mark.parametrize("server_lr", [0.3, 1.0])
def test_fedsep_s_error_shrinks_by_one_minus_s_over_k_a_round(server_lr):
    """Features that are orthogonal at each client: what a likelihood adds is exact."""
    data = independent(clients(0, 4, features=3))
    method = FedSEP(server_lr, 0.0, DECAY)
    mean, var = posterior_of_all(data, prior_std(data))
    model, state = rounds(method, data, [range(4)])

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
    _, state = rounds(FedEP(0.6, 0.7, DECAY), data, TURNS)
    expected = [[torch.zeros(3).double() for _ in range(2)] for _ in data]
    velocity = [[torch.zeros(3).double() for _ in range(2)] for _ in data]
    for turn in TURNS:
        for k in turn:
            for part, whole in enumerate(added(data)[k]):
                step = 0.6 / len(turn) * (whole - expected[k][part])
                velocity[k][part] = 0.7 * velocity[k][part] + step
                expected[k][part] = expected[k][part] + velocity[k][part]
    for k, (precision, shift) in enumerate(expected):
        expected_site = Factor({"weight": shift}, {"weight": precision})
        assert_same_factor(factors("site", state)[f"site/{k}"], expected_site)


def test_fedsep_follows_what_the_likelihoods_add_beyond_their_shares_with_momentum():
    """u ← β u + (s/C) Σ_k (L_k − w_k η_g), η_g ← η_g + u, w_k the share of those ever heard."""
    data = independent(clients(0, 4, features=3))
    model, _ = rounds(FedSEP(0.6, 0.7, DECAY), data, TURNS)
    sizes = [len(y) for _, y in data]
    expected, velocity = [torch.zeros(3).double()] * 2, [torch.zeros(3).double()] * 2
    for number, turn in enumerate(TURNS):
        for part in range(2):
            moves = [
                added(data)[k][part] - (number > 0) * sizes[k] / sum(sizes) * expected[part]
                for k in turn
            ]
            velocity[part] = 0.7 * velocity[part] + 0.6 / len(turn) * sum(moves)
        expected = [now + u for now, u in zip(expected, velocity, strict=True)]
    wanted = Factor({"weight": expected[1]}, {"weight": expected[0]})
    assert_same_factor(Factor.of(Posterior.from_state_dict(model)), wanted)


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
    model, state = rounds(method, data, 400 * [range(4)])
    mean, var = posterior_of_all(data, prior_std(data))
    assert_is(model, mean, var)
    for _ in range(5):  # at the fixed point all L_k are in balance: that two are away tips it
        model, state = one_round(method, model, state, data, [0, 2])
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
    refused("kl_weight", lambda: rounds(method(), data, [[0]], kl_weight=0.0))


@pytest.mark.in_turn
@pytest.mark.parametrize(("correlation", "damping"), [(0.0, 0.1), (0.5, 0.1), (0.8, 0.2)])
@pytest.mark.parametrize("kl_weight", [1.0, 0.3])
def test_it_reaches_the_posterior_of_all_data(correlation, damping, kl_weight):
    data = clients(0, 4, features=3, correlation=correlation)
    method = BayesADMM(damping=damping, prior_std=0.7)
    model, _ = rounds(method, data, 400 * [range(4)], kl_weight=kl_weight)
    assert_is(model, *posterior_of_all(data, 0.7, kl_weight))


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.3, 3.0))
def test_one_round_is_exact_where_posteriors_factorise(seed, count, prior_std):
    """With ρ = 1/K and γ = 1, from the prior."""
    data = independent(clients(seed, count, features=3))
    method = BayesADMM(rho=1 / count, damping=1.0, prior_std=prior_std)
    model, _ = rounds(method, data, [range(count)])
    assert_is(model, *posterior_of_all(data, prior_std), 1e-9)


def test_at_rho_1_a_round_moves_the_sites_as_pvi_does():
    ours, theirs = (
        factors("site", rounds(method, clients(3, 3), [range(3)])[1])
        for method in (BayesADMM(rho=1.0, damping=0.3), PVI(damping=0.3))
    )
    for name in theirs:
        assert_same_factor(ours[name], theirs[name])


def test_at_rho_1_and_a_damping_of_1_over_k_it_is_pvi():
    for count in range(1, 6):
        ours, theirs = (
            rounds(method, clients(3, 3), count * [range(3)])[0]
            for method in (BayesADMM(damping=1 / 3), PVI())
        )
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("rho", [0.3, 1.0, 2.5])
def test_with_variances_that_are_fixed_and_alike_it_is_admm(rho):
    data, s = clients(4, 3, features=3), 4.0
    method = BayesADMM(rho=rho, damping=1.0, prior_std=s**-0.5)

    def frozen(local):
        torch.testing.assert_close(local.prior.precision["weight"], torch.full((3,), s).double())
        exact_fit(local)
        local.model.weight_log_var.data = torch.full((3,), -math.log(s), dtype=torch.float64)
        return {}

    model, state = start(method, data)
    z = torch.zeros(3, dtype=torch.float64)
    duals = [torch.zeros(3, dtype=torch.float64) for _ in data]
    for _ in range(7):
        model, state = one_round(method, model, state, data, range(3), inference=frozen)
        primals = []
        for k, (x, y) in enumerate(data):
            left = x.t() @ x / NOISE_VAR + rho * s * torch.eye(3, dtype=torch.float64)
            right = x.t() @ y / NOISE_VAR + rho * s * z - duals[k]
            primals.append(torch.linalg.solve(left, right))
            duals[k] = duals[k] + rho * s * (primals[k] - z)
        z = (rho * s * sum(primals) + sum(duals)) / (s + 3 * rho * s)
        torch.testing.assert_close(model["weight_mean"], z)


def test_a_weight_without_precision_stays_as_it_was():
    method = BayesADMM(rho=0.1, damping=1.0, prior_std=1.0)
    model = {"weight_mean": torch.zeros(2), "weight_log_var": torch.zeros(2)}
    for _ in range(6):
        narrow = Reply("a", 1.0, {"weight_mean": torch.ones(2), "weight_log_var": -torch.ones(2)})
        model, state = method.aggregate(Server(model, method.start(model)), [narrow])
    state = {k: -1e3 * t if k.startswith("site/a/precision") else t for k, t in state.items()}
    after, _ = method.aggregate(Server(model, state), [narrow])
    assert all(torch.equal(after[name], tensor) for name, tensor in model.items())
