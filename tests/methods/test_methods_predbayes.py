"""β-PredBayes: between the mixture and the product of the clients' predictions, β learned."""

import pytest
import torch
from ensembles import data, network, server
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from fedbary.methods import Bench, Reply, Server
from fedbary.methods.predbayes import PredBayes
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Draws, Pooled, forecast, gaussian_pool, kind_of, log_pool
from fedbary.tasks.tables import natural, weighted_cross_entropy
from fedbary.variational.regressor import Regressor, gaussian_nll


def logits(seed, clients, count=20, classes=4):
    return 2 * torch.randn(clients, count, classes, generator=Generator().manual_seed(seed))


@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.0, 1.0))
def test_beta_runs_from_the_mixture_to_the_product(seed, clients, beta):
    logs = logits(seed, clients).log_softmax(-1)
    product, mixture = logs.exp().prod(0), logs.exp().mean(0)
    expected = product**beta * mixture ** (1 - beta)
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(log_pool(logs, beta).exp(), expected, rtol=1e-4, atol=1e-6)
    alike = logs[:1].expand(clients, -1, -1)
    tempered = ((1 + beta * (clients - 1)) * logs[0]).softmax(-1)
    torch.testing.assert_close(log_pool(alike, beta).exp(), tempered, rtol=1e-4, atol=1e-6)


@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.0, 1.0))
def test_beta_of_numbers_is_between_their_product_and_their_moments(seed, clients, beta):
    generator = Generator().manual_seed(seed)
    mean = torch.randn(clients, 9, generator=generator, dtype=torch.float64)
    var = torch.rand(clients, 9, generator=generator, dtype=torch.float64) + 0.1
    at = {b: gaussian_pool(mean, var, torch.tensor(b)) for b in (0.0, 1.0, beta)}
    second = (var + mean.square()).mean(0)
    torch.testing.assert_close(at[0.0][0], mean.mean(0))
    torch.testing.assert_close(at[0.0][1], second - mean.mean(0).square())
    torch.testing.assert_close(at[1.0][1], 1 / (1 / var).sum(0))
    torch.testing.assert_close(at[1.0][0], (mean / var).sum(0) / (1 / var).sum(0))
    precision = beta / at[1.0][1] + (1 - beta) / at[0.0][1]
    torch.testing.assert_close(at[beta][1], 1 / precision)
    same = gaussian_pool(
        mean[:1].expand(clients, -1), var[:1].expand(clients, -1), torch.tensor(beta)
    )
    torch.testing.assert_close(same[0], mean[0])
    torch.testing.assert_close(same[1], var[0] / (1 + beta * (clients - 1)))


def samples_of(count, each, seed=0):
    """Replies of clients with networks of their own, stacked."""
    found = []
    for k in range(count):
        nets = [network(seed + 10 * k + m).state_dict() for m in range(each)]
        weights = {
            n: torch.stack([net[n] for net in nets]) for n in nets[0] if not n.startswith("1.run")
        }
        weights = {n: t for n, t in weights.items() if t.is_floating_point()}
        found.append(Reply(str(k), 1.0, {**nets[0], **weights}))
    return found


def predicted(net, x, members, by, word="auto", **how):
    held, generator = Predictive(net.state_dict(), members=members, kind=by), Generator()
    return kind_of(word)().predict(net, x, held, Draws(1, generator.manual_seed(0)), **how)


def pooled_forecast(networks, x, by):
    held = Predictive({}, members=networks, kind=by)
    _, forecast_of = by.forecasting(held, Draws(1, Generator()))
    return forecast_of(x)


def test_the_learned_beta_is_the_best_on_the_server_s_examples_and_predicts():
    x, y = data(1, 300)
    method = PredBayes(networks=2, server_epochs=400)
    here = server(x, y)
    model, state = method.aggregate(here, samples_of(3, 2))
    held = method.predictive(model, state)
    members, pool = held.members, held.kind
    assert pool.each == 2 and members["0.weight"].shape[0] == 6

    def nll(beta):
        probs = predicted(network(), x, members, Pooled(2, beta)).probs
        return float(-probs[torch.arange(300), y].log().mean())

    best = min(torch.linspace(0, 1, 101).tolist(), key=nll)
    assert pool.beta == pytest.approx(best, abs=0.02)
    assert nll(pool.beta) <= min(nll(0.0), nll(1.0)) + 1e-6
    assert method.predictive(model, {}).kind is None


def test_predictions_pool_clients_not_networks():
    x, members = data(2, 50)[0], {}
    for reply in samples_of(3, 2):
        for name, tensor in reply.tensors.items():
            part = tensor if len(tensor.shape) and len(tensor) == 2 and name[0] in "03" else None
            if part is not None:
                members.setdefault(name, []).append(part)
    members = {name: torch.cat(parts) for name, parts in members.items()}
    net = network().eval()
    found = predicted(net, x, members, Pooled(2, 0.3))
    with torch.no_grad():
        each = torch.stack(
            [
                torch.func.functional_call(net, {n: t[k] for n, t in members.items()}, (x,))
                for k in range(6)
            ]
        ).softmax(-1)
    clients = each.view(3, 2, 50, 2).mean(1)
    expected = clients.prod(0) ** 0.3 * clients.mean(0) ** 0.7
    torch.testing.assert_close(found.probs, expected / expected.sum(-1, keepdim=True))
    product = predicted(net, x, members, Pooled(2, 0.3), "product")
    geometric = clients.log().mean(0).softmax(-1)
    torch.testing.assert_close(product.probs, geometric)
    mixture = predicted(net, x, members, Pooled(2, 0.3), "members")
    torch.testing.assert_close(mixture.probs, each.mean(0))


def test_class_weights_are_taken_out_of_the_pooled_prediction_for_which_beta_was_learned():
    """Trap: taken out of each client's, they are in the product as often as there are clients."""
    x, y = data(3, 300)
    weights = torch.tensor([0.55, 5.0])
    weighted = weighted_cross_entropy(weights)
    here = Server(network().state_dict(), {}, bench=Bench(network(), x, y, weighted))
    method = PredBayes(networks=2, server_epochs=400)
    model, state = method.aggregate(here, samples_of(4, 2))
    members = method.predictive(model, state).members

    def found(beta):
        how = {"adjusted": lambda logits: natural(logits, weights)}
        return predicted(network(), x, members, Pooled(2, beta), **how)

    def nll(beta):
        """Of what is weighted again: for this β was learned."""
        return float(weighted((found(beta).probs * weights).log(), y))

    best = min(torch.linspace(0, 1, 101).tolist(), key=nll)
    assert method.predictive(model, state).kind.beta == pytest.approx(best, abs=0.02)
    plain = predicted(network(), x, members, Pooled(2, 0.8)).probs
    expected = plain / weights
    torch.testing.assert_close(found(0.8).probs, expected / expected.sum(-1, keepdim=True))


def test_pooled_forecasts_at_beta_0_are_the_mixture_s():
    torch.manual_seed(0)
    nets = [Regressor(2, 3, noise="learned") for _ in range(4)]
    for k, net in enumerate(nets):
        net.reset(-5.0, k)
    networks = {n: torch.stack([net.state_dict()[n] for net in nets]) for n in nets[0].state_dict()}
    x = torch.randn(20, 2)
    plain, pooled = forecast(networks, x), pooled_forecast(networks, x, Pooled(2, 0.0))
    torch.testing.assert_close(plain.mean, pooled.mean)
    torch.testing.assert_close(plain.var, pooled.var)
    sure = pooled_forecast(networks, x, Pooled(2, 1.0))
    assert (sure.var < pooled.var).all() and (sure.epistemic >= 0).all()


def test_a_regression_s_learned_beta_is_the_best_for_its_pooled_forecasts():
    torch.manual_seed(0)
    x, each = torch.randn(300, 2), 2
    y = x[:, 0] + 0.5 * torch.randn(300)
    nets = []
    for k in range(6):
        nets.append(Regressor(2, 0, noise="learned"))
        nets[-1].output.weight.data[0] = torch.tensor([1.0, 0.0]) + 0.4 * torch.randn(2)
        nets[-1].log_noise_var.data.fill_(0.3 * (k % 3) - 0.5)
    stacks = [
        {n: torch.stack([net.state_dict()[n] for net in nets[k : k + each]]) for n in names}
        for k in range(0, 6, each)
        for names in [nets[0].state_dict()]
    ]
    here = Server(nets[0].state_dict(), {}, bench=Bench(nets[0], x, y, gaussian_nll))
    method = PredBayes(networks=each, server_epochs=400)
    replies_here = [Reply(str(k), 1.0, stack) for k, stack in enumerate(stacks)]
    model, state = method.aggregate(here, replies_here)
    held = method.predictive(model, state)
    members, pool = held.members, held.kind

    def nll(beta):
        found = pooled_forecast(members, x, Pooled(each, beta))
        return float(gaussian_nll(torch.stack([found.mean, found.var.log()], 1), y))

    best = min(torch.linspace(0, 1, 101).tolist(), key=nll)
    assert 0.05 < best < 0.95
    assert pool.beta == pytest.approx(best, abs=0.02)
