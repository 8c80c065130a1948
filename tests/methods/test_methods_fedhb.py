"""The truths of FedHB: known optima of its clients and of its server."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_regressions import EXAMPLES, NOISE_VAR, Points, data, local

from fedbary.methods._near import fit_near
from fedbary.methods.fedhb import FedHB


def test_sgd_near_others_ends_at_the_penalised_optimum():
    """(H + diag s / n) w = b + s · target / n, with momentum and a precision of any size."""
    x, y = data()
    features = torch.stack([x, x.square()], 1)
    curvature = features.t() @ features / NOISE_VAR / EXAMPLES
    right = features.t() @ y / NOISE_VAR / EXAMPLES
    target, precision = torch.tensor([0.5, -1.0]).double(), torch.tensor([30.0, 1e7]).double()
    exact = torch.linalg.solve(
        curvature + precision.diag() / EXAMPLES, right + precision * target / EXAMPLES
    )
    model = Points()
    fit_near(local(model, 0.02, epochs=300), lambda q: lambda value: (target, precision))
    torch.testing.assert_close(model.w.detach(), exact, rtol=1e-6, atol=1e-8)


def elbo(m0, v0, l0, n0, networks, method):
    """Return −ELBO of q(μ, Σ) = NIW(m0, v0, l0, n0) of one weight, given the clients' spikes."""
    log_det = (v0 / 2).log() - torch.digamma(n0 / 2)
    p, spike = method.keep, method.spike_std**2
    energy = 0.0
    for m in networks:  # E[−log N(θ; μ, Σ)], θ ~ p N(m, ε²) + (1 − p) N(0, ε²)
        square = spike + p * (m - m0) ** 2 + (1 - p) * m0**2
        energy = energy + 0.5 * (log_det + n0 / v0 * square + 1 / l0)
    lam, s2, dof = method.prior_clients, method.prior_std**2, 3.0
    of_mean = 0.5 * (lam / l0 - 1 - math.log(lam) + l0.log() + lam * n0 / v0 * m0**2)
    of_var = (  # KL(IW(v0, n0) ‖ IW(s², dof)), inverse gammas of half of each
        (n0 - dof) / 2 * torch.digamma(n0 / 2) - torch.lgamma(n0 / 2) + math.lgamma(dof / 2)
        + dof / 2 * ((v0 / 2).log() - math.log(s2 / 2)) + n0 / 2 * (s2 / v0 - 1)
    )  # fmt: skip
    return energy + of_mean + of_var


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-2, 2), min_size=1, max_size=8),
    st.sampled_from([FedHB(), FedHB(1.0, 1.0, 1.0, 0.7, 0.3), FedHB(0.5, 1.0, 2.0, 1.0)]),
)
def test_the_server_s_step_is_the_optimum_of_the_elbo(networks, method):
    tensors = torch.tensor(networks, dtype=torch.float64)
    mean, var = method.optimum(tensors[:, None])
    count = len(networks)
    q = [mean[0], var[0], torch.tensor(count + method.prior_clients), torch.tensor(count + 3.0)]
    q = [value.double().clone().requires_grad_() for value in q]
    elbo(*q, tensors, method).backward()
    scale = count / float(var)
    assert abs(float(q[0].grad)) < 1e-8 * scale + 1e-9
    assert all(abs(float(value.grad)) < 1e-8 * (1 + scale) for value in q[1:])


def test_a_client_is_fedprox_under_the_learned_metric_and_its_own_model_under_its_prior():
    x, y = data()
    features = torch.stack([x, x.square()], 1)
    curvature = features.t() @ features / NOISE_VAR
    right = features.t() @ y / NOISE_VAR
    method = FedHB(keep=1.0, prior_weight=1.0)
    centre, var = torch.tensor([0.5, -0.2]).double(), torch.tensor([0.1, 3.0]).double()
    received = {
        "w": centre, "niw/var/w": var, "niw/clients": torch.tensor(7.0, dtype=torch.float64)
    }  # fmt: skip

    def exact(strength):
        metric = strength / var
        return torch.linalg.solve(curvature + metric.diag(), right + metric * centre)

    sent = method.fit(local(Points(), 0.02, epochs=600), received, {}).reply["w"]
    torch.testing.assert_close(sent, exact(10.0), rtol=1e-6, atol=1e-8)
    own = method.personal(local(Points(), 0.02, epochs=600), received, {}).model["w"]
    torch.testing.assert_close(own, exact(13.0), rtol=1e-6, atol=1e-8)


def test_everybody_s_prediction_has_the_moments_of_the_student_t():
    method, model = FedHB(prior_clients=1.0), {"w": torch.zeros(1)}
    state = {"niw/var/w": torch.tensor([0.8]), "niw/clients": torch.tensor(9.0)}
    found = method.predictive(model, state).posterior.log_var["w"].exp()
    student = torch.distributions.StudentT(12.0, scale=math.sqrt(0.8 * 11 / (10 * 12)))
    torch.testing.assert_close(found, student.variance[None])
