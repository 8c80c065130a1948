"""The truths of methods with models of the clients' own: pFedBayes, pFedVem."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedbary.gaussian import Factor, Posterior, kl_divergence
from fedbary.inference import Training, local_method
from fedbary.methods import Local, Reply, Server
from fedbary.methods.pfedbayes import GlobalCopy, _log_var, _rho, pFedBayes
from fedbary.methods.pfedvem import RHO, pFedVem, squared_rho
from fedbary.variational.layers import VariationalLinear, reset_layer

H, Z = (5.0, 8.0, 3.0, 10.0), (-1.0, 0.5, 1.2, 2.0)
"""Four clients' likelihoods of one weight, N(θ; z, 1/h)."""


class Weight(nn.Module):
    """One Gaussian weight, in float64."""

    def __init__(self, mean=0.0, log_var=0.0):
        super().__init__()
        self.w_mean = nn.Parameter(torch.tensor([mean], dtype=torch.float64))
        self.w_log_var = nn.Parameter(torch.tensor([log_var], dtype=torch.float64))


def exact(local):
    """Infer N(θ; z, 1/h) in closed form: x holds h, y holds z."""
    h, prior = local.x[:1] / local.training.kl_weight, local.prior
    factor = Factor.of(prior) if isinstance(prior, Posterior) else prior
    precision = factor.precision["w"] + h
    local.model.w_mean.data = (factor.shift["w"] + h * local.y[:1]) / precision
    local.model.w_log_var.data = -precision.log()
    return {}


def local(h, z, seed=0, epochs=1):
    x, y = torch.tensor([h], dtype=torch.float64), torch.tensor([z], dtype=torch.float64)
    return Local(Weight(), x, y, None, exact, Training(epochs=epochs), 1.0, 1, seed)


def state(mean=0.0, log_var=0.0):
    return {name: tensor.detach() for name, tensor in Weight(mean, log_var).state_dict().items()}


def rounds(method, count, model=None):
    model, kept = model or state(), [{}] * len(H)
    for _ in range(count):
        fitted = [method.fit(local(h, z), model, k) for h, z, k in zip(H, Z, kept, strict=True)]
        replies = [Reply(str(i), 1.0 + i, f.reply) for i, f in enumerate(fitted)]
        kept = [f.kept for f in fitted]
        model, _ = method.aggregate(Server(model, {}), replies)
    return model, kept


def test_the_exact_global_step_ends_at_the_optimum_of_the_marginal_likelihood():
    """Of θ_k ~ N(m, v), z_k ~ N(θ_k, 1/h_k): N(z_k; m, v + 1/h_k) over the clients."""
    model, _ = rounds(pFedBayes(zeta=1.0, global_step="exact"), 400)
    m, v = model["w_mean"].clone(), model["w_log_var"].exp()
    torch.testing.assert_close(m, torch.tensor([0.688], dtype=m.dtype), rtol=0, atol=1e-3)
    torch.testing.assert_close(v, torch.tensor([1.066], dtype=m.dtype), rtol=0, atol=1e-3)
    m.requires_grad_(), v.requires_grad_()
    spread = v + 1 / torch.tensor(H, dtype=m.dtype)
    gap = torch.tensor(Z, dtype=m.dtype) - m
    (0.5 * (spread.log() + gap.square() / spread)).sum().backward()
    assert m.grad.abs() < 1e-5 and v.grad.abs() < 1e-5


@pytest.mark.parametrize("zeta", [0.5, 1.0, 1e12])
def test_a_client_s_posterior_is_that_of_its_data_under_the_global_one(zeta):
    sent = state(0.3, -1.0)
    kept = pFedBayes(zeta=zeta).fit(local(5.0, -1.0), sent, {}).kept
    precision = math.e + 5.0 / zeta
    assert float(kept["w_log_var"]) == pytest.approx(-math.log(precision))
    mean = (math.e * 0.3 - 5.0 / zeta) / precision
    assert float(kept["w_mean"]) == pytest.approx(mean)  # for ζ = 1e12 the global 0.3


@given(*[st.floats(-3, 3)] * 2, *[st.floats(-6, 2)] * 2)
def test_the_copy_s_gradient_is_that_of_the_divergence(m, m_q, log_var, log_var_q):
    own = state(m_q, log_var_q)
    copy = GlobalCopy(state(m, log_var), ["w"], 1e-9)
    copy.follow(own, 1)
    mean = torch.tensor([m], dtype=torch.float64, requires_grad=True)
    rho = _rho(torch.tensor([log_var], dtype=torch.float64)).requires_grad_()
    var = nn.functional.softplus(rho).square()
    square = math.exp(log_var_q) + (mean - m_q).square()
    (0.5 * (var.log() + square / var)).sum().backward()
    torch.testing.assert_close(copy._mean["w"].grad, mean.grad)
    torch.testing.assert_close(copy._rho["w"].grad, rho.grad)


def test_the_copy_follows_the_client_s_posterior_to_it():
    own = Posterior.from_state_dict(state(0.4, -2.0))
    copy = GlobalCopy(state(0.0, 0.0), ["w"], 0.02)
    before = kl_divergence(own, copy.posterior())
    for steps, most in ((0, before), (50, before / 2), (2000, 1e-6)):
        copy.follow(own.state_dict(), steps)
        assert kl_divergence(own, copy.posterior()) <= most


@given(st.floats(-39, 39))
def test_rho_is_the_inverse_of_softplus(log_var):
    found = _log_var(_rho(torch.tensor(log_var, dtype=torch.float64)))
    assert float(found) == pytest.approx(log_var, abs=1e-6)


def test_copies_are_averaged_by_size_on_rho_and_damped():
    model = {**state(1.0, 0.0), "bias": torch.zeros(1)}
    replies = [
        Reply(str(k), k + 1.0, {**state(k, -k), "bias": torch.full((1,), float(k))})
        for k in range(3)
    ]
    after, _ = pFedBayes(beta=0.25).aggregate(Server(model, {}), replies)
    shares = [1 / 6, 2 / 6, 3 / 6]
    mean = sum(w * k for k, w in enumerate(shares))
    rho = sum(w * math.log(math.expm1(math.exp(-k / 2))) for k, w in enumerate(shares))
    rho = 0.75 * math.log(math.expm1(1)) + 0.25 * rho
    assert float(after["w_mean"]) == pytest.approx(0.75 + 0.25 * mean)
    assert float(after["w_log_var"]) == pytest.approx(2 * math.log(math.log1p(math.exp(rho))))
    assert float(after["bias"]) == pytest.approx(mean)


def test_only_the_exact_step_sends_the_client_s_own_posterior():
    for step, same in (("copies", False), ("exact", True)):
        fitted = pFedBayes(global_step=step).fit(local(5.0, 2.0, epochs=4), state(), {})
        assert torch.equal(fitted.reply["w_mean"], fitted.kept["w_mean"]) == same


def test_an_epoch_of_the_one_is_followed_by_its_steps_of_the_other():
    """q_k starts from what the client keeps, v_k from v; an epoch's prior is v_k as it stands."""
    sent, seen = state(0.3, -1.0), []

    def spy(local):
        mean, of_prior = local.model.w_mean, local.prior.mean["w"]
        seen.append((float(mean.detach()), float(of_prior), local.training.epochs))
        return exact(local)

    job = local(5.0, -1.0)
    job = replace(
        job, x=job.x.repeat(6), y=job.y.repeat(6), inference=spy,
        training=Training(epochs=3, batch_size=1),
    )  # fmt: skip
    fitted = pFedBayes(global_lr=0.05, steps_per_global=2).fit(job, sent, state(-2.0, -3.0))
    copy, model, starts = GlobalCopy(sent, ["w"], 0.05), Weight(), []
    for _ in range(3):
        starts.append(float(copy.posterior().mean["w"]))
        training = Training(kl_weight=10.0)
        exact(replace(job, model=model, prior=copy.posterior(), training=training))
        copy.follow(model.state_dict(), 3)  # 6 steps of q_k, 2 for each of v_k
    assert [prior for _, prior, _ in seen] == pytest.approx(starts)
    assert seen[0][0] == -2.0 and [epochs for _, _, epochs in seen] == [1, 1, 1]
    found, expected = fitted.reply, copy.posterior().state_dict()
    assert all(float(found[name]) == pytest.approx(float(t)) for name, t in expected.items())


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-4, 1)), min_size=2, max_size=5))
def test_rho_is_where_the_divergence_from_the_prior_is_least(clients):
    head = Posterior(
        {"w": torch.tensor([m for m, _ in clients], dtype=torch.float64)},
        {"w": torch.tensor([v for _, v in clients], dtype=torch.float64)},
    )
    anchor = {"w": torch.full((len(clients),), 0.3, dtype=torch.float64)}
    best = math.log(squared_rho(head, anchor))

    def kl(log_rho_squared):
        log_var = torch.full((len(clients),), log_rho_squared, dtype=torch.float64)
        return kl_divergence(head, Posterior(anchor, {"w": log_var}))

    assert kl(best) <= min(kl(best - 0.01), kl(best + 0.01))


def reply(k, mean, log_rho):
    tensors = {"head/mean/w": torch.tensor([mean], dtype=torch.float64), RHO: torch.tensor(log_rho)}
    return Reply(str(k), 1.0 + 9 * k, tensors)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-4, 4)), min_size=1, max_size=6))
def test_the_global_head_is_where_the_clients_divergences_are_least(clients):
    replies = [reply(k, m, log_rho) for k, (m, log_rho) in enumerate(clients)]
    after, _ = pFedVem().aggregate(Server(state(), {}), replies)
    best = float(after["w_mean"])

    def total(m_g):
        return sum((m - m_g) ** 2 / math.exp(log_rho) for m, log_rho in clients)

    assert total(best) <= min(total(best - 1e-3), total(best + 1e-3))
    same = [reply(k, m, 0.7) for k, (m, _) in enumerate(clients)]
    after, _ = pFedVem().aggregate(Server(state(), {}), same)
    plain = sum(m for m, _ in clients) / len(clients)
    assert float(after["w_mean"]) == pytest.approx(plain, abs=1e-9)  # whatever the sizes


def test_the_base_is_averaged_by_size_whatever_the_heads_say():
    replies = [reply(0, 5.0, -6.0), reply(1, 1.0, 2.0)]
    for held, value in zip(replies, (1.0, 12.0), strict=True):
        held.tensors["base"] = torch.tensor([value])
    after, _ = pFedVem().aggregate(Server({**state(), "base": torch.zeros(1)}, {}), replies)
    assert float(after["base"]) == pytest.approx((1.0 + 10 * 12.0) / 11)


def test_a_head_that_lies_on_the_global_one_is_held_by_the_least_rho():
    fitted = pFedVem(least_rho=0.1).fit(local(4.0, 2.0), state(0.5), state(0.5, -30.0))
    assert float(fitted.reply[RHO].exp()) == pytest.approx(0.01)
    assert float(fitted.kept["w_log_var"]) == pytest.approx(-math.log(104.0))


def test_nobody_owns_the_global_head_by_a_claim_of_certainty():
    replies = [reply(0, 5.0, -1e30), reply(1, 1.0, 2 * math.log(0.001))]
    after, _ = pFedVem().aggregate(Server(state(), {}), replies)
    assert float(after["w_mean"]) == pytest.approx(3.0)


def test_the_head_is_the_posterior_under_the_global_one_with_rho_from_before():
    received, kept = state(0.5, -7.0), state(1.5, math.log(0.2))
    method = pFedVem()
    fitted = method.fit(local(4.0, 2.0), received, kept)
    rho_squared = 0.2 + 1.0
    assert float(fitted.reply[RHO].exp()) == pytest.approx(rho_squared)
    precision = 4.0 + 1 / rho_squared
    assert float(fitted.kept["w_log_var"]) == pytest.approx(-math.log(precision))
    assert float(fitted.kept["w_mean"]) == pytest.approx((8.0 + 0.5 / rho_squared) / precision)
    assert fitted.reply.keys() == method.reply_like(received).keys()


def test_head_and_base_are_trained_one_after_the_other():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), VariationalLinear(4, 2, bias=False))
    reset_layer(network[2], -4.0, torch.Generator().manual_seed(0))
    received = {name: t.detach().clone() for name, t in network.state_dict().items()}
    seen = []

    def spy(local):
        before = local.state()
        found = local_method("variational")(local)
        after = local.state()
        seen.append(({n for n in before if not torch.equal(before[n], after[n])}, local.training))
        return found

    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    data = Local(network, x, (x[:, 0] > 0).long(), nn.functional.cross_entropy, spy,
                 Training(epochs=2, batch_size=8), 1.0, 1, 0)  # fmt: skip
    pFedVem(head_steps=7).fit(data, received, {})
    head = {"2.weight_mean", "2.weight_log_var"}
    assert [changed for changed, _ in seen] == [head, {"0.weight", "0.bias"}]
    assert (seen[0][1].epochs, seen[0][1].batch_size) == (7, 20)
    assert all(parameter.requires_grad for parameter in network.parameters())
    own = pFedVem().personal(replace(data, seed=1), received, network.state_dict())
    assert (own.model["2.weight_log_var"] == -40).all()  # the head at its mean, on its own base
    assert torch.equal(own.model["0.weight"], network.state_dict()["0.weight"])
    assert pFedVem().personal(data, received, {}) is None
