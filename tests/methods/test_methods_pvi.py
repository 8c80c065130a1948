"""PVI finds the mean-field posterior of all data, and keeps the global η = η₀ + Σ λ."""

import pytest
import torch
from linear_gaussian import (
    NOISE_VAR,
    Linear,
    clients,
    exact_fit,
    independent,
    one_round,
    posterior_of_all,
    start,
)

from fedbary.errors import SettingError
from fedbary.gaussian import Factor, Posterior
from fedbary.inference import Training, local_method
from fedbary.methods import Local, Reply, Server, method_named
from fedbary.methods._sites import LEAST_CAVITY_PRECISION, factors
from fedbary.methods.pvi import PVI
from fedbary.variational.noise import generator_of


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_one_client_a_round_reaches_the_posterior_of_all_data(correlation):
    data, method = clients(0, 3, features=3, correlation=correlation), PVI()
    model, state = start(method, data)
    for server_round in range(240):
        model, state = one_round(method, model, state, data, [server_round % 3])
    mean, var = posterior_of_all(data)
    torch.testing.assert_close(model["weight_mean"], mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model["weight_log_var"].exp(), var, rtol=1e-9, atol=0)


def test_all_at_once_with_damping_reach_it_too():
    data, method = clients(1, 3, features=3), PVI(prior_std=0.7)
    model, state = start(method, data)
    for _ in range(150):
        model, state = one_round(method, model, state, data, range(3))
    mean, var = posterior_of_all(data, 0.7)
    torch.testing.assert_close(model["weight_mean"], mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model["weight_log_var"].exp(), var, rtol=1e-5, atol=0)


@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_an_undamped_start_of_factorising_posteriors_is_the_end(damping):
    data = independent(clients(2, 8))
    method = PVI(damping=damping, undamped_start=True)
    model, state = start(method, data)
    mean, var = posterior_of_all(data)
    for _ in range(3):  # the second round finds nothing to mend
        model, state = one_round(method, model, state, data, range(8))
        torch.testing.assert_close(model["weight_mean"], mean)
        torch.testing.assert_close(model["weight_log_var"].exp(), var)


def test_an_undamped_start_of_correlated_features_reaches_the_same_end():
    data, method = clients(1, 3, features=3), PVI(undamped_start=True)
    model, state = start(method, data)
    for _ in range(150):
        model, state = one_round(method, model, state, data, range(3))
    mean, var = posterior_of_all(data)
    torch.testing.assert_close(model["weight_mean"], mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model["weight_log_var"].exp(), var, rtol=1e-5, atol=0)


def test_the_global_factor_is_the_prior_times_the_sites_and_a_fixed_point_stays():
    data, method = clients(0, 4), PVI()
    model, state = start(method, data)
    for server_round in range(200):
        turn = [server_round % 4] if server_round % 3 else [0, 2]
        model, state = one_round(method, model, state, data, turn)
        product = Factor.normal(1.0, {"weight": model["weight_mean"]})
        for site in factors("site", state).values():
            product = product * site
        found = Factor.of(Posterior.from_state_dict(model))
        torch.testing.assert_close(found.precision["weight"], product.precision["weight"])
        torch.testing.assert_close(found.shift["weight"], product.shift["weight"])
    again, _ = one_round(method, model, state, data, [2])
    torch.testing.assert_close(again["weight_mean"], model["weight_mean"], rtol=1e-5, atol=1e-5)


def test_one_client_with_all_data_is_plain_variational_inference():
    data, method = clients(3, 1), PVI()
    model, state = start(method, data)
    model, state = one_round(method, model, state, data, [0])
    plain = Linear(4)
    exact_fit(Local(plain, *data[0], prior=Factor.normal(1.0, {"weight": plain.weight_mean})))
    torch.testing.assert_close(model["weight_mean"], plain.weight_mean.detach())
    torch.testing.assert_close(model["weight_log_var"], plain.weight_log_var.detach())


def test_synchronous_rounds_of_damping_one_over_k_are_the_uniform_reverse_kl_barycentre():
    from fedbary.aggregation import aggregate

    data, method = clients(1, 3), PVI()
    model, state = start(method, data)
    model, state = one_round(method, model, state, data, range(3))
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
    with pytest.raises(SettingError, match="damping"):
        one_round(method, model, state, data, range(3))
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
