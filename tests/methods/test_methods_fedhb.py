"""FedHB and its mixture: known optima of clients and of the server, centres, the gate."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from small_regressions import EXAMPLES, NOISE_VAR, Points, data, local, nll, state
from torch import nn

from fedbary.inference import Training
from fedbary.methods import Local, Reply, Server
from fedbary.methods._sites import fit_near
from fedbary.methods.fedhb import FedHB
from fedbary.methods.fedhbmixture import FedHBMixture
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Draws, Gated, kind_of


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


@given(st.integers(0, 1000), st.integers(2, 5), st.integers(1, 3))
def test_the_centres_are_where_the_clients_and_the_prior_hold_them(seed, clients, centres):
    """Zero gradient of Σ_kj c_kj ‖m_k − r_j‖²/2σ² + ½ ‖r_j‖², by the assignments of before."""
    generator = torch.Generator().manual_seed(seed)
    method = FedHBMixture(centres=centres, centre_std=0.8)
    before = torch.randn(centres, 3, generator=generator, dtype=torch.float64)
    networks = torch.randn(clients, 3, generator=generator, dtype=torch.float64)
    replies = [
        Reply(str(k), 1.0, {"w": network, "gate/w": -network}) for k, network in enumerate(networks)
    ]
    server = Server({"w": before[0]}, {"centres/w": before, "gate/w": before[0]})
    model, state = method.aggregate(server, replies)
    near = (-torch.cdist(networks, before).square() / 2 / 0.64).softmax(1)
    after = state["centres/w"].clone().requires_grad_()
    squares = (networks[:, None] - after).square().sum(-1)
    ((near * squares).sum() / 2 / 0.64 + after.square().sum() / 2).backward()
    moved = near.sum(0) > 0.01
    assert after.grad[moved].abs().max() < 1e-10
    assert torch.equal(state["centres/w"][~moved], before[~moved])
    assert torch.equal(model["w"], state["centres/w"][near.sum(0).argmax()])
    torch.testing.assert_close(state["gate/w"], -networks.mean(0))


def test_two_kinds_of_clients_find_their_centres():
    """Targets of opposite signs: after some rounds each kind is near a centre of its own."""
    x, y = data()
    method, model = FedHBMixture(centre_std=0.3), state(Points())
    held = method.start(model)
    for _ in range(8):
        server, replies = Server(model, held), []
        for k, sign in enumerate([1, 1, -1, -1, -1]):
            training = Training(20, 10, lr=0.02)
            client = Local(Points(), x, sign * y, nll, None, training, 1.0, 1, k)
            fitted = method.fit(client, method.send(server, str(k)), {})
            replies.append(Reply(str(k), 1.0, fitted.reply))
        model, held = method.aggregate(server, replies)
    first, second = held["centres/w"]
    assert (first - second).norm() > 0.5 and float(first @ second) < 0
    assert torch.equal(model["w"], held["centres/w"][int(first[0] > 0)])  # the larger kind's


def halves(k, count=100):
    """Return inputs about ±2.5: on one side the label is the sign of x₂, on the other not."""
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(count, 2, generator=generator)
    side = 1.0 if k % 2 else -1.0
    return torch.stack([x[:, 0] + 2.5 * side, x[:, 1]], 1), (side * x[:, 1] > 0).long()


def test_the_gate_tells_from_an_input_whose_centre_is_right():
    """No linear classifier serves both kinds of clients, nor does the mean of two."""
    torch.manual_seed(0)
    method, model = FedHBMixture(centre_std=0.3), dict(nn.Linear(2, 2).state_dict())
    held, loss = method.start(model), nn.functional.cross_entropy
    for server_round in range(1, 8):
        server, replies = Server(model, held, server_round), []
        for k in range(4):
            training = Training(4, 10, lr=0.1)
            client = Local(nn.Linear(2, 2), *halves(k), loss, None, training, 1.0, server_round, k)
            fitted = method.fit(client, method.send(server, str(k)), {})
            assert fitted.reply.keys() == method.reply_like(model).keys()
            replies.append(Reply(str(k), 1.0, fitted.reply))
        model, held = method.aggregate(server, replies)
    x, y = (torch.cat(parts) for parts in zip(halves(11), halves(12), strict=True))
    by = method.predictive(model, held)

    def right(kind):
        network = nn.Linear(2, 2)
        found = kind_of(kind)().predict(network, x, by, Draws(2, torch.Generator()))
        torch.testing.assert_close(found.probs.sum(1), torch.ones(len(x)))
        assert (found.epistemic <= found.entropy + 1e-6).all()
        return float((found.probs.argmax(1) == y).float().mean())

    assert right("auto") > 0.9
    assert right("members") < 0.75 and right("product") < 0.75


def test_one_centre_needs_no_gate_and_too_many_for_the_outputs_are_refused():
    model = dict(nn.Linear(2, 2).state_dict())
    for centres in (1, 3, 4):
        method = FedHBMixture(centres=centres)
        client = Local(
            nn.Linear(2, 2), *halves(0), nn.functional.cross_entropy, None, Training(1, 50, lr=0.1),
            1.0, 1, 0,
        )  # fmt: skip
        sent = method.send(Server(model, method.start(model)), "0")
        if centres == 4:
            refused("centres: 4; expected at most 3", method.fit, client, sent, {})
            continue
        reply = method.fit(client, sent, {}).reply
        moved = any(not torch.equal(reply["gate/" + n], t) for n, t in model.items())
        assert moved == (centres == 3)


@given(st.integers(1, 2), st.integers(0, 99))
def test_a_gated_forecast_has_the_moments_of_its_mixture(experts, seed):
    """The gate of two is a sigmoid."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    networks = {
        "output.weight": torch.randn(experts + 1, 1, 2, generator=generator).double(),
        "output.bias": torch.randn(experts + 1, 1, generator=generator).double(),
    }
    by = Predictive({}, members=networks, kind=Gated(experts), noise_var=0.3)
    _, forecast = Gated(experts).forecasting(by, Draws(1, generator))
    found = forecast(x)
    answers = x @ networks["output.weight"][:, 0].T + networks["output.bias"][:, 0]
    share = answers[:, -1].sigmoid() if experts == 2 else torch.ones(6).double()
    shares = torch.stack([share, 1 - share], 1)[:, :experts]
    mean = (shares * answers[:, :experts]).sum(1)
    second = (shares * (answers[:, :experts].square() + 0.3)).sum(1)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.var, second - mean.square(), rtol=1e-4, atol=1e-5)
