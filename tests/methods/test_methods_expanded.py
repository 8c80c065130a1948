"""Laplace sites of a last layer: exact where posteriors are Gaussian, else central at their end."""

import copy
import math
from functools import cached_property

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from threadpoolctl import ThreadpoolController
from torch import nn
from torch.nn import functional

from fedbary.aggregation.covariance import STRUCTURES, unpacked
from fedbary.errors import SettingError
from fedbary.inference import Local, Training, local_method
from fedbary.inference._head import Head
from fedbary.methods import Reply, Server
from fedbary.methods._expanded import Expanded
from fedbary.methods.pvi import PVI

PRIOR_STD = 0.8


def half_squares(outputs, y):
    return 0.5 * (outputs - y).square().sum(1).mean()


def network(inputs, outputs, bias=True):
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs, bias=bias)).double()


def split(x, y, sites=3):
    """Return unequal parts, sorted by what y says first, so that sites differ."""
    order = (y if y.ndim == 1 else y[:, 0]).argsort()
    cuts = torch.linspace(0, 1, sites + 1).pow(1.5).mul(len(x)).long().tolist()
    return [(x[order[a:b]], y[order[a:b]]) for a, b in zip(cuts, cuts[1:], strict=False)]


def softmax_data(seed=0, n=240, inputs=3, classes=4):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=generator, dtype=torch.float64)
    logits = x @ torch.randn(inputs, classes, generator=generator, dtype=torch.float64)
    y = torch.distributions.Categorical(logits=logits)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return x, y.sample()


def local(model, x, y, nll, prior=1.0, kl_weight=1.0):
    training = Training(kl_weight=kl_weight)
    return Local(model, x, y, nll, local_method("laplace"), training, prior)


def rounds(method, model, parts, nll, count, state=None, **kwargs):
    tensors = {name: t.clone() for name, t in model.state_dict().items()}
    state = method.start(tensors) if state is None else state
    for _ in range(count):
        replies = []
        for k, (x, y) in enumerate(parts):
            sent = method.send(Server(tensors, state), f"site/{k}")
            fitted = method.fit(local(model, x, y, nll, **kwargs), sent, {})
            replies.append(Reply(f"site/{k}", len(x), fitted.reply))
        tensors, state = method.aggregate(Server(tensors, state), replies)
    return tensors, state


def central(model, x, y, nll, kl_weight=1.0):
    job = local(model, x, y, nll, PRIOR_STD, kl_weight)
    job.infer(job.prior)
    return job.state()


def test_a_mode_is_sought_with_one_thread_of_scipy_s_blas():
    pools, seen = ThreadpoolController().select(prefix="libscipy_openblas"), []
    if not pools.info():
        pytest.skip("another BLAS")

    def threads():
        return {pool["num_threads"] for pool in pools.info()}

    def nll(outputs, y):
        seen.append(threads())
        return functional.cross_entropy(outputs, y)

    with pools.limit(limits=2):
        central(network(3, 4), *softmax_data(), nll)
        assert {1} in seen and threads() == {2}


@pytest.mark.parametrize("kl_weight", [1.0, 0.3])
@pytest.mark.parametrize("covariance", ["full", "diagonal", "kronecker"])
def test_one_round_is_the_posterior_of_all_data_where_the_structure_holds_it(covariance, kl_weight):
    """Of squared errors Λ = I: full and kronecker hold any inputs, diagonal orthogonal ones."""
    generator = torch.Generator().manual_seed(1)
    kwargs = {"generator": generator, "dtype": torch.float64}
    parts = []
    for n in (8, 20, 13):
        x, y = torch.randn(n, 3, **kwargs), torch.randn(n, 2, **kwargs)
        parts.append((torch.linalg.qr(x).Q if covariance == "diagonal" else x, y))
    model = network(3, 2, bias=False)
    method = PVI(covariance=covariance, prior_std=PRIOR_STD)
    found, state = rounds(method, model, parts, half_squares, 1, kl_weight=kl_weight)
    x, y = (torch.cat(both) for both in zip(*parts, strict=True))
    precision = x.T @ x / kl_weight + torch.eye(3, dtype=torch.float64) / PRIOR_STD**2
    exact = torch.linalg.solve(precision, x.T @ y / kl_weight).T
    torch.testing.assert_close(found["1.weight"], exact, rtol=1e-5, atol=1e-6)
    structure = STRUCTURES[covariance](2, 3)
    held = structure.zeros()
    for _, site in method.expanded.sites(state, structure):
        held = {name: tensor + site[name] for name, tensor in held.items()}
    to = torch.randn(2, 3, **kwargs)
    torch.testing.assert_close(
        structure.product(held)(to) + to / PRIOR_STD**2, to @ precision, rtol=1e-5, atol=1e-6
    )


def test_full_sites_end_at_the_central_mode_and_its_hessian():
    x, y = softmax_data()
    exact = central(network(3, 4), x, y, functional.cross_entropy)
    method = PVI(covariance="full", prior_std=PRIOR_STD)
    found, state = rounds(method, network(3, 4), split(x, y), functional.cross_entropy, 12)
    for name, tensor in exact.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=2e-3)
    ones = torch.cat([x, x.new_ones(len(x), 1)], 1)

    def loss(flat):
        return functional.cross_entropy(ones @ flat.view(4, 4).T, y, reduction="sum")

    mode = torch.cat([exact["1.weight"], exact["1.bias"][:, None]], 1)
    hessian = torch.autograd.functional.hessian(loss, mode.flatten())
    sites = method.expanded.sites(state, STRUCTURES["full"](4, 4))
    held = sum(unpacked(site["precision"], 16) for _, site in sites)
    torch.testing.assert_close(held, hessian, rtol=1e-2, atol=1e-2)


def gaps(method, parts, model, count):
    """Return how far the penalised loss of all data is above its least after each round."""
    x, y = (torch.cat(both) for both in zip(*parts, strict=True))

    def loss(tensors):
        outputs = functional.linear(x, tensors["1.weight"], tensors["1.bias"])
        penalty = sum(t.square().sum() for t in tensors.values()) / PRIOR_STD**2 / 2
        return float(functional.cross_entropy(outputs, y, reduction="sum") + penalty)

    least = loss(central(copy.deepcopy(model), x, y, functional.cross_entropy))
    found, state = [], None
    for _ in range(count):
        tensors, state = rounds(method, model, parts, functional.cross_entropy, 1, state)
        model.load_state_dict(tensors)
        found.append(loss(tensors) - least)
    return found


def test_full_sites_converge_as_newton_s_method_without_a_damping_to_choose():
    x, y = softmax_data(n=400)
    ours, half = (
        gaps(PVI(covariance="full", prior_std=PRIOR_STD, damping=damping), split(x, y), model, 6)
        for damping, model in ((0.0, network(3, 4)), (0.5, network(3, 4)))
    )
    assert ours[0] == pytest.approx(half[0]) and ours[0] > 1
    assert ours[4] < 1e-5 < 1e-2 * ours[0] and half[4] > 10 * ours[4]


def test_a_prior_far_weaker_than_the_digits_of_a_message_still_has_modes():
    """A softmax has directions that the prior alone holds, at 1e-8 here; messages have 1e-7.

    Without what `rounding` adds the fifth round has none.
    """
    x, y = softmax_data(n=900, inputs=5, classes=7)
    x, method = 3 * x + 1, PVI(covariance="full", prior_std=1e4)
    model, parts = network(5, 7).float(), split(x.float(), y, sites=6)
    found, _ = rounds(method, model, parts, functional.cross_entropy, 6)
    exact, _ = rounds(method, network(5, 7), split(x, y, sites=6), functional.cross_entropy, 6)
    for name, tensor in found.items():
        odds, wanted = (each.double() - each[:1].double() for each in (tensor, exact[name]))
        torch.testing.assert_close(odds, wanted, rtol=1e-4, atol=1e-4)


def skewed(n=300, inputs=6, classes=3):
    """Return the examples of clients of one class each, on which a bound's whole steps diverge."""
    draw = torch.Generator().manual_seed(6)
    kwargs = {"generator": draw, "dtype": torch.float64}
    x, weights = 3 * torch.randn(n, inputs, **kwargs), torch.randn(inputs, classes, **kwargs)
    y = torch.multinomial((2 / 3 * x @ weights).softmax(1), 1, generator=draw)[:, 0]
    return [(x[y == c], y[y == c]) for c in range(classes)]


class Plain:
    """PVI of a softmax's weights (C, d + 1) with Böhning's sites, in NumPy and scipy alone."""

    def __init__(self, parts):
        self.parts = [
            (np.hstack([x.numpy(), np.ones((len(x), 1))]), np.eye(len(parts))[y.numpy()])
            for x, y in parts
        ]
        self.shape = self.parts[0][1].shape[1], self.parts[0][0].shape[1]

    def slope(self, k, flat):
        """Return a client's NLL and its gradient."""
        (x, y), weights = self.parts[k], flat.reshape(self.shape)
        logits = x @ weights.T
        return -(y * log_softmax(logits, 1)).sum(), ((softmax(logits, 1) - y).T @ x).ravel()

    def mode(self, clients, precision, linear):
        """Return argmin of the clients' NLL + ½ wᵀ P w − bᵀ w, by scipy."""

        def value(flat):
            loss, pull = (
                sum(part) for part in zip(*(self.slope(k, flat) for k in clients), strict=True)
            )
            bent = precision @ flat
            return loss + flat @ (bent / 2 - linear), pull + bent - linear

        options = {"maxiter": 5000, "maxfun": 20000, "gtol": 1e-8, "ftol": 0.0}
        return minimize(value, 0 * linear, jac=True, method="L-BFGS-B", options=options).x

    def rounds(self, step, count):
        """Yield the global mode after each round; the first moves sites all the way."""
        outputs, inputs = self.shape
        prior, bound = np.eye(outputs * inputs) / PRIOR_STD**2, (np.eye(outputs) - 1 / outputs) / 2
        curved = [np.kron(bound, x.T @ x) for x, _ in self.parts]
        held, linear = [0 * prior for _ in curved], [np.zeros(len(prior)) for _ in curved]
        for number in range(count):
            found = []
            for k, precision in enumerate(curved):
                others = prior + sum(held) - held[k], sum(linear) - linear[k]
                tilted = self.mode([k], *others)
                found.append(precision @ tilted - self.slope(k, tilted)[1])
            gamma = step if number else 1.0
            held = [h + gamma * (p - h) for h, p in zip(held, curved, strict=True)]
            linear = [b + gamma * (f - b) for b, f in zip(linear, found, strict=True)]
            yield np.linalg.solve(prior + sum(held), sum(linear))

    def gap(self, flat):
        """Return how far the penalised NLL of all data is above its least, by scipy."""
        return self.penalised(flat) - self.least

    @cached_property
    def least(self):
        size = math.prod(self.shape)
        everyone, prior = range(len(self.parts)), np.eye(size) / PRIOR_STD**2
        return self.penalised(self.mode(everyone, prior, np.zeros(size)))

    def penalised(self, w):
        nlls = (self.slope(k, w)[0] for k in range(len(self.parts)))
        return sum(nlls) + w @ w / (2 * PRIOR_STD**2)


@pytest.mark.slow
def test_shared_sites_that_would_diverge_under_skew_are_held_over_many_rounds():
    """A plain recursion diverges as well at whole steps, so the bound itself is no guarantee."""
    parts = skewed()
    plain = Plain(parts)
    whole = [plain.gap(flat) for flat in plain.rounds(1.0, 40)]
    assert whole[-1] > 10 * min(whole)
    method, model, state, found = (
        PVI(covariance="shared", prior_std=PRIOR_STD),
        network(6, 3),
        {},
        [],
    )
    for _ in range(40):
        tensors, state = rounds(method, model, parts, functional.cross_entropy, 1, state)
        model.load_state_dict(tensors)
        flat = torch.cat([tensors["1.weight"], tensors["1.bias"][:, None]], 1).flatten().numpy()
        found.append(plain.gap(flat))
    assert max(found[1:]) <= found[0]
    assert found[-1] < min(whole)


def test_shared_sites_follow_the_plain_recursion_at_any_damping():
    parts = skewed()
    *_, flat = Plain(parts).rounds(0.5, 6)
    method = PVI(covariance="shared", prior_std=PRIOR_STD, damping=0.5)
    found, _ = rounds(method, network(6, 3), parts, functional.cross_entropy, 6)
    held = torch.cat([found["1.weight"], found["1.bias"][:, None]], 1)
    torch.testing.assert_close(held, torch.tensor(flat).view(3, 7), rtol=0, atol=1e-4)


def test_diagonal_sites_that_would_diverge_are_held():
    x, y = softmax_data(n=400)
    x = torch.cat([x + 0.1 * softmax_data(k, n=400)[0] for k in range(4)], 1)  # fours alike
    ours, whole = (
        gaps(PVI(covariance="diagonal", prior_std=PRIOR_STD, damping=damping), parts, model, 8)
        for damping, parts, model in ((d, split(x, y), network(12, 4)) for d in (0.0, 1.0))
    )
    assert whole[-1] > 2 * whole[2]
    assert ours[-1] < ours[2] / 2


@pytest.mark.parametrize("covariance", STRUCTURES)
def test_what_holds_the_curvature_alone_is_not_damped(covariance):
    x, y = softmax_data()
    method = PVI(covariance=covariance, prior_std=PRIOR_STD)
    _, state = rounds(method, network(3, 4), split(x, y), functional.cross_entropy, 3)
    assert (float(state["step/length"]) == 1) == (covariance == "full")


def test_where_others_reply_the_step_is_the_structure_s_own():
    x, y = softmax_data()
    parts, model, method = split(x, y), network(3, 4), PVI(covariance="diagonal")
    tensors, state = rounds(method, model, parts, functional.cross_entropy, 2)
    server = Server(tensors, state)
    sent = method.send(server, "site/0")
    fitted = method.fit(local(model, *parts[0], functional.cross_entropy), sent, {})
    _, after = method.aggregate(server, [Reply("site/0", len(parts[0][0]), fitted.reply)])
    assert float(after["step/length"]) == STRUCTURES["diagonal"].damping
    key, whole = "site/site%2F0/precision", fitted.reply["site/precision"]
    torch.testing.assert_close(after[key], torch.lerp(state[key], whole, 0.3))


@pytest.mark.parametrize("covariance", STRUCTURES)
def test_the_central_mode_is_a_fixed_point_whatever_the_structure(covariance):
    x, y = softmax_data()
    parts, model = split(x, y), network(3, 4)
    exact = central(model, x, y, functional.cross_entropy)
    structure, state = STRUCTURES[covariance](4, 4), {}
    for k, part in enumerate(parts):
        model.load_state_dict(exact)
        head = Head(local(model, *part, functional.cross_entropy))
        site = head.curvature(structure, head.weights)
        for name, tensor in {"slope": head.gradient(head.weights).flatten(), **site}.items():
            state[f"site/site%2F{k}/{name}"] = tensor
    method = PVI(covariance=covariance, prior_std=PRIOR_STD)
    found, _ = rounds(method, model, parts, functional.cross_entropy, 2, state=state)
    for name, tensor in exact.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-4)


@pytest.mark.parametrize("covariance", STRUCTURES)
def test_a_solution_solves_and_messages_have_the_stated_sizes(covariance):
    c, d, n = 4, 3, 50
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    probs = torch.randn(n, c, generator=generator, dtype=torch.float64).softmax(1)
    bent = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
    structure = STRUCTURES[covariance](c, d)
    held = structure.expand(x, bent)
    sizes = {"diagonal": c * d, "full": c * d * (c * d + 1) // 2, "shared": d * (d + 1) // 2,
             "kronecker": d * (d + 1) // 2 + c * (c + 1) // 2 + 1}  # fmt: skip
    assert sum(tensor.numel() for tensor in held.values()) == sizes[covariance]
    assert {name: len(tensor) for name, tensor in held.items()} == structure.sizes()
    to = torch.randn(c, d, generator=generator, dtype=torch.float64)
    solved = structure.solve(held, 0.7)(to)
    torch.testing.assert_close(structure.product(held)(solved) + 0.7 * solved, to)
    root = structure.root(held, 0.7)
    columns = torch.stack([root(e.view(c, d)).flatten() for e in torch.eye(c * d).double()], 1)
    twice = (columns @ columns.T @ to.flatten()).view(c, d)
    torch.testing.assert_close(twice, structure.solve(held, 0.7)(to))
    assert structure.fault(held) is None
    exact = torch.einsum("nce,nd,nf,ef->cd", bent, x, x, to)
    found = (structure.product(held)(to) * to).sum()
    if covariance == "full":
        torch.testing.assert_close(structure.product(held)(to), exact)
    if covariance == "shared":  # Böhning: no softmax is curved more
        assert found >= (exact * to).sum()
    if covariance == "diagonal":
        blocks = torch.einsum("ncc,nd->cd", bent, x.square())
        torch.testing.assert_close(structure.product(held)(to), blocks * to)


@pytest.mark.parametrize("covariance", STRUCTURES)
def test_a_site_of_no_convex_loss_is_refused(covariance):
    x, y = softmax_data()
    model, method = network(3, 4), PVI(covariance=covariance)
    tensors, _ = rounds(method, model, split(x, y), functional.cross_entropy, 0)
    server, given = Server(tensors, {}), local(model, x, y, functional.cross_entropy)
    sound = method.fit(given, method.send(server, "0"), {}).reply
    for wrong in (-1.0, math.nan):
        bad = {n: t * wrong if n != "site/slope" else t for n, t in sound.items()}
        with pytest.raises(ValueError, match="a site of no convex loss"):
            method.aggregate(server, [Reply("0", 1.0, sound), Reply("1", 1.0, bad)])


def test_a_client_that_is_away_keeps_its_site():
    x, y = softmax_data()
    parts, model, method = split(x, y), network(3, 4), PVI(covariance="full")
    tensors, state = rounds(method, model, parts, functional.cross_entropy, 1)
    sent = method.send(Server(tensors, state), "site/0")
    reply = method.fit(local(model, *parts[0], functional.cross_entropy), sent, {}).reply
    _, after = method.aggregate(Server(tensors, state), [Reply("site/0", 1.0, reply)])
    key = "site/site%2F1/precision"
    torch.testing.assert_close(after[key], state[key])


@pytest.mark.parametrize("covariance", STRUCTURES)
def test_a_cavity_is_the_sum_of_the_others_sites_and_costs_no_more_where_clients_are_many(
    covariance, monkeypatch
):
    x, y = softmax_data()
    parts, model, method = split(x, y), network(3, 4), PVI(covariance=covariance)
    tensors, state = rounds(method, model, parts, functional.cross_entropy, 2)
    structure, server = STRUCTURES[covariance](4, 4), Server(tensors, state)
    sites = dict(method.expanded.sites(state, structure))
    sent = {client: method.send(server, client) for client in (*sites, "a new one")}
    for client, message in sent.items():
        for name in structure.sizes():
            others = sum(site[name] for other, site in sites.items() if other != client)
            torch.testing.assert_close(message[f"cavity/{name}"], others)
    read = []
    monkeypatch.setattr(Expanded, "sites", lambda self, *_: read.append(1) or iter(()))
    for client in sites:
        method.send(server, client)
    assert not read


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)), "'0.weight' trains too"),
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax(1)), "ends in its linear layer"),
        (nn.Sequential(nn.Flatten()), "last linear layer alone trains"),
    ],
)
def test_another_network_is_refused(model, said):
    x, y = softmax_data()
    job = local(model, x.float(), y, functional.cross_entropy)
    with pytest.raises(SettingError, match=said):
        job.infer(job.prior)


def test_a_layer_too_large_for_a_structure_is_refused_with_its_size():
    model = {"weight": torch.zeros(10, 1280), "bias": torch.zeros(10)}
    with pytest.raises(SettingError, match=r"full of 12,810 weights, 82,054,455 numbers"):
        PVI(covariance="full").start(model)
    for covariance in ("diagonal", "kronecker", "shared"):
        PVI(covariance=covariance).start(model)
