"""Predictions are those of their networks, run one by one, whatever path is taken."""

import copy

import pytest
import torch
from torch import Generator, nn

from fedbary import predict
from fedbary.gaussian import Posterior
from fedbary.models import build
from fedbary.predictive import Predictive, mixture, product
from fedbary.predictive.dropout import Dropout
from fedbary.predictive.networks import answering_draws, answering_states, drawn_layers
from fedbary.predictive.predictor import Auto, Draws, Members
from fedbary.variational.layers import drawing, variational


def model(n, log_var=-3.0):
    return build("cnn", (1, 12, 12), 5, 0, n, log_var, {"initialisation": "papers"})


def plain_answer(net, network, x):
    """What the network of the means answers once drawn weights stand in their place."""
    point = copy.deepcopy(net)
    point.load_state_dict({**net.state_dict(), **network})
    return point(x)


@pytest.mark.parametrize("layers", [*range(6), ["fc1", "fc2"], ["conv2", "fc3"], ["conv1"]])
def test_it_is_the_mean_softmax_of_the_drawn_networks(layers):
    """The last layers are Gaussian, or some by name, after which a head need not be."""
    net, x = model(0 if isinstance(layers, list) else layers), torch.rand(9, 1, 12, 12)
    if isinstance(layers, list):
        net = variational(net, names=layers, init_log_var=-2.0)
    probs = predict(net, x, 7, seed=1, batch_size=4).probs
    with torch.inference_mode():
        drawn = drawn_layers(net, 7, Generator().manual_seed(1))
        expected = torch.stack([plain_answer(net, network, x) for network in drawn])
        expected = expected.softmax(-1).mean(0)
    assert not probs.requires_grad
    torch.testing.assert_close(probs, expected)
    torch.testing.assert_close(probs.sum(1), torch.ones(9))


def test_uint8_images_are_scaled_to_one():
    net, x = model(2), torch.randint(0, 256, (4, 1, 12, 12), dtype=torch.uint8)
    ours = predict(net, x, 3, seed=1).probs
    scaled = predict(net, x.float() / 255, 3, seed=1).probs
    torch.testing.assert_close(ours, scaled)


@pytest.mark.slow
def test_more_samples_approach_the_posterior_predictive():
    net, x = model(3, log_var=-2.0), torch.rand(10, 1, 12, 12)
    truth = predict(net, x, 5_000, seed=2, batch_size=5).probs
    errors = [(predict(net, x, s, seed=1).probs - truth).abs().mean() for s in (4, 200)]
    assert errors[1] < errors[0] / 4


def test_entropy_splits_into_aleatoric_and_epistemic():
    net, x = model(3, log_var=-2.0), torch.rand(20, 1, 12, 12)
    prediction = predict(net, x, 50, seed=1, batch_size=7)
    with torch.inference_mode():
        networks = drawn_layers(net, 50, Generator().manual_seed(1))
        drawn = torch.stack([plain_answer(net, network, x) for network in networks])
    probs = drawn.softmax(-1).double()
    each = -(probs * probs.log()).sum(-1)
    kl = (probs * (probs.log() - probs.mean(0).log())).sum(-1)
    assert prediction.epistemic.min() > 0
    torch.testing.assert_close(prediction.aleatoric.double(), each.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(prediction.epistemic.double(), kl.mean(0), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(prediction.entropy, prediction.aleatoric + prediction.epistemic)


class Blocks(nn.Module):
    """Batch norm, a convolution with a stride and without bias, no head that could be split off."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.4)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))


def blocks(**chosen):
    torch.manual_seed(0)
    net = variational(Blocks(), **chosen, init_log_var=-2.0)
    net(3 * torch.rand(50, 1, 12, 12))
    return net


X = torch.rand(7, 1, 12, 12, generator=Generator().manual_seed(3))


@pytest.mark.parametrize("name", ["resnet20", "mlp", "linear"])
@pytest.mark.parametrize("n", [0, 1])
def test_the_head_of_a_sequence_is_run_as_the_whole_would_be(name, n):
    net = build(name, (1, 12, 12), 5, 0, n, -2.0)
    logits = answering_draws(net, 3, Generator().manual_seed(1))(X)
    drawn = drawn_layers(net, 3, Generator().manual_seed(1))
    with torch.no_grad():
        expected = torch.stack([plain_answer(net.eval(), network, X) for network in drawn])
    torch.testing.assert_close(logits, expected)
    assert len(logits) == (3 if n else 1)


def test_scoring_is_in_evaluation_mode_and_leaves_the_model_as_it_was():
    net = blocks(last=1).train()
    net.norm.eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    probs = predict(net, X, 3, seed=1).probs
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert net.training and net.drop.training and not net.norm.training
    single = torch.cat([predict(net, x[None], 3, seed=1).probs for x in X])
    torch.testing.assert_close(probs, single)


def test_members_are_run_each_and_their_posteriors_drawn_from():
    net = blocks(last=2).eval()
    states = []
    for seed in range(3):
        torch.manual_seed(seed)
        states.append(
            {k: v + torch.rand_like(v.float()).to(v) for k, v in net.state_dict().items()}
        )
    with torch.no_grad():
        expected = torch.stack([plain_answer(net, state, X) for state in states])
        means = torch.cat([*map(answering_states(net, states), X.split(4))], 1)
    torch.testing.assert_close(means, expected)

    generator = Generator().manual_seed(1)
    with torch.no_grad():
        together = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        held = Predictive({}, members=together)
        found = Members().answering(net, held, Draws(6, Generator().manual_seed(1)))(X)
    for index, state in enumerate(states):
        net.load_state_dict(state)
        own = answering_draws(net, 2, generator)(X)
        torch.testing.assert_close(found[2 * index : 2 * index + 2], own)


def test_mixture_and_product_are_their_formulas():
    logits = 3 * torch.randn(4, 9, 5, generator=Generator().manual_seed(0))
    probs = logits.double().softmax(-1)
    torch.testing.assert_close(mixture(logits).probs.double(), probs.mean(0), rtol=1e-5, atol=1e-7)
    geometric = probs.prod(0) ** 0.25
    expected = geometric / geometric.sum(-1, keepdim=True)
    torch.testing.assert_close(product(logits).probs.double(), expected, rtol=1e-4, atol=1e-7)
    for combine in (mixture, product):
        torch.testing.assert_close(combine(logits[:1]).probs, logits[0].softmax(-1))


def test_the_product_of_gaussian_like_experts_is_sure_where_the_mixture_is_not():
    sides = torch.tensor([[[2.0, 1.0, -9.0]], [[-9.0, 1.0, 2.0]]])
    assert product(sides).probs.argmax() == 1 != int(mixture(sides).probs.argmax())


@pytest.mark.slow
def test_dropout_is_kept_at_its_rate_while_batch_norm_is_in_evaluation_mode():
    net = blocks(last=0)
    state = torch.get_rng_state()
    with torch.no_grad():
        draws = (Draws(4000, Generator().manual_seed(1)) for _ in range(2))
        logits, again = (Dropout().answering(net, Predictive({}), each)(X) for each in draws)
    assert torch.equal(torch.get_rng_state(), state) and net.drop.training
    with torch.no_grad():
        plain = net.eval()(X)
        hidden = net.norm(net.conv(X)).relu().mean((2, 3))
        var = 0.4 / 0.6 * hidden.square() @ net.fc.weight.square().t()
    standard_error = (var / len(logits)).sqrt()
    assert ((logits.mean(0) - plain).abs() < 5 * standard_error + 1e-6).all()
    torch.testing.assert_close(logits.var(0), var, rtol=0.15, atol=1e-6)
    assert torch.equal(again, logits)


@pytest.mark.slow
def test_drawn_networks_and_passes_that_draw_have_the_same_moments():
    """Convolutions draw weights a pass, linear layers outputs; predictions draw weights once."""
    net = blocks(last=2).eval()
    with torch.no_grad(), drawing(net, Generator().manual_seed(0)):
        passes = torch.stack([net(X) for _ in range(4000)])
    with torch.no_grad():
        logits = answering_draws(net, 4000, Generator().manual_seed(1))(X)
    std = passes.std(0)
    assert ((logits.mean(0) - passes.mean(0)).abs() < 6 * std / 4000**0.5 * 2**0.5).all()
    torch.testing.assert_close(logits.std(0), std, rtol=0.1, atol=0)


@pytest.mark.cuda
def test_a_posterior_read_from_a_file_predicts_on_the_model_s_gpu():
    net, x = nn.Linear(3, 2).cuda(), torch.randn(5, 3, device="cuda")
    held = {name: tensor.cpu() for name, tensor in net.state_dict().items()}
    posterior = Posterior(held, {name: torch.full_like(t, -40.0) for name, t in held.items()})
    generator = Generator("cuda").manual_seed(0)
    found = Auto().predict(net, x, Predictive({}, posterior), Draws(3, generator))
    torch.testing.assert_close(found.probs.float(), net(x).softmax(-1).detach())
