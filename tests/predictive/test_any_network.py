"""Any network predicts and is scored: Gaussian layers, layers that draw by themselves, none."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import fedbary
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.predictive.networks import answers_of, drawn_layers
from fedbary.variational import variational

X, Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2


class Drawing(nn.Module):
    """A weight N(mean, 1) that every pass draws, as Pyro's and bayesian-torch's modules do."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([1.0, -1.0, 0.5]))

    def forward(self, x):
        score = x @ (self.mean + torch.randn(3))
        return torch.stack([score, -score], 1), torch.tensor(0.0)


@pytest.fixture
def plain():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def test_a_plain_network_predicts_by_its_softmax_and_is_left_as_it_was(plain):
    plain.train()
    before = torch.get_rng_state()
    prediction = fedbary.predict(plain, X, 9, batch_size=7)
    assert plain.training and torch.equal(before, torch.get_rng_state())
    torch.testing.assert_close(prediction.probs, plain.eval()(X).softmax(1))
    assert prediction.epistemic.isnan().all()


def test_a_network_of_point_weights_is_run_once(plain):
    passes = []
    plain.register_forward_hook(lambda *_: passes.append(1))
    fedbary.predict(plain, X, samples=50, batch_size=20)
    assert len(passes) == 2 + 2  # two to see that they agree, one a batch


def test_gaussian_layers_are_drawn_from(plain):
    network = variational(plain, last=1, init_log_var=0.0)
    prediction = fedbary.predict(network, X, 30)
    assert (prediction.epistemic > 0.01).float().mean() > 0.5
    again = fedbary.predict(network, X, 30, batch_size=3)
    torch.testing.assert_close(prediction.probs, again.probs)
    other = fedbary.predict(network, X, 30, seed=1)
    assert not torch.equal(prediction.probs, other.probs)


class Ended(nn.Module):
    """A trunk and a Gaussian layer, after which there may be more."""

    def __init__(self, plain, end):
        super().__init__()
        self.trunk, self.end = plain[:-1], end
        self.head = variational(nn.Sequential(plain[-1]), last=1, init_log_var=0.0)[0]

    def forward(self, x):
        return self.end(self.head, self.trunk(x))


@pytest.mark.parametrize(
    ("end", "passes"),
    [
        (lambda head, x: head(x), 1),
        (lambda head, x: 2 * head(x), 5),
        (lambda head, x: head(x + head(x).mean()), 5),
        (lambda head, x: x[:, :2], 5),
    ],
    ids=["last", "scaled", "twice", "unused"],
)
def test_layers_before_the_one_that_is_drawn_run_once_where_its_output_is_the_network_s(
    plain, end, passes
):
    network, seen = Ended(plain, end).eval(), []
    network.trunk.register_forward_hook(lambda *_: seen.append(1))
    networks = drawn_layers(network, 5, torch.Generator().manual_seed(0))
    found = answers_of(network, networks, X)
    assert len(seen) == passes
    assert torch.equal(found, torch.stack([functional_call(network, n, (X,)) for n in networks]))


@pytest.mark.slow
def test_layers_that_draw_by_themselves_draw_the_same_network_for_every_batch():
    network = Drawing()
    whole, parts = fedbary.predict(network, X, 20), fedbary.predict(network, X, 20, batch_size=3)
    torch.testing.assert_close(whole.probs, parts.probs)
    many = fedbary.predict(network, X[:1], 4000)
    draws = X[0] @ (network.mean.detach()[:, None] + torch.randn(3, 200_000))
    expected = torch.sigmoid(2 * draws).mean()
    assert float(many.probs[0, 0]) == pytest.approx(float(expected), abs=0.03)


def test_bayesian_torch_s_layers_draw():
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    network = nn.Sequential(nn.Linear(3, 2))
    dnn_to_bnn(
        network,
        {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": 0.0,
         "type": "Reparameterization", "moped_enable": False},
    )  # fmt: skip
    prediction = fedbary.predict(network, X, 30)
    assert float(prediction.epistemic.mean()) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("gaussian", [False, True])
def test_a_posterior_is_drawn_into_a_network_plain_or_gaussian(plain, gaussian):
    """Weights N(m, v) of one linear layer: the logits' mean over draws is that of m."""
    linear = nn.Linear(3, 2)
    held = variational(linear, last=1, init_log_var=-4.0)
    posterior = Posterior.from_state_dict(held.state_dict())
    fresh = nn.Linear(3, 2)
    network = variational(fresh, last=1) if gaussian else fresh
    found = fedbary.forecast(nn.Sequential(network, Difference()), X, 3000, prefixed(posterior))
    plain_answer = linear(X) @ torch.tensor([1.0, -1.0])
    torch.testing.assert_close(found.mean.float(), plain_answer, atol=0.05, rtol=0)
    variance = 2 * math.exp(-4) * X.square().sum(1)
    torch.testing.assert_close(found.epistemic.float(), variance, rtol=0.15, atol=1e-3)


class Difference(nn.Module):
    def forward(self, x):
        return x[:, 0] - x[:, 1]


def prefixed(posterior):
    mean, log_var = ({f"0.{n}": t for n, t in part.items()} for part in
                     (posterior.mean, posterior.log_var))  # fmt: skip
    return Posterior(mean, log_var)


def test_an_ensemble_is_its_state_dicts(plain):
    states = []
    for seed in range(3):
        torch.manual_seed(seed)
        states.append({n: torch.randn_like(t) if t.is_floating_point() else t
                       for n, t in plain.state_dict().items() if "running" not in n})  # fmt: skip
    found = fedbary.predict(plain, X, networks=states)
    each = [torch.func.functional_call(plain.eval(), s, (X,)).softmax(1) for s in states]
    torch.testing.assert_close(found.probs, torch.stack(each).mean(0))


def test_numbers_have_the_noise_that_networks_say():
    network = nn.Linear(3, 2)
    found = fedbary.forecast(network, X, noise_var=0.5)
    answers = network(X).double()
    torch.testing.assert_close(found.mean, answers[:, 0])
    torch.testing.assert_close(found.var, answers[:, 1].exp() + 0.5)
    assert fedbary.score(found, torch.randn(40)).keys() >= {"nll", "rmse", "crps"}
    assert fedbary.reliability_picture(found, torch.randn(40)).axes


def test_scores_and_picture_are_those_of_the_probabilities(plain):
    prediction = fedbary.predict(plain, X)
    scores = fedbary.score(prediction, Y)
    nll = functional.nll_loss(prediction.probs.log(), Y)
    assert scores["nll"] == pytest.approx(float(nll), abs=1e-5)
    said = fedbary.reliability_picture(prediction, Y, title="Mine").axes[0].get_title()
    assert "Mine" in said and f"{100 * scores['ece']:.2f}" in said


@pytest.mark.parametrize(
    ("network", "how", "said"),
    [
        (nn.Linear(3, 2), {"samples": 0}, "from 1 up"),
        (nn.Linear(3, 1), {}, "two classes or more"),
        (nn.Linear(3, 2), {"networks": []}, "at least one state dict"),
        (nn.Linear(3, 2), {"networks": [{"weigt": torch.ones(2, 3)}]}, "tensors of the network"),
        (nn.Linear(3, 2), {"networks": [{"weight": torch.ones(3, 3)}]}, "in their shapes"),
    ],
)
def test_what_cannot_predict_is_said_in_one_line(network, how, said):
    refused(said, fedbary.predict, network, X, **how)
    refused("no input", fedbary.predict, network, X[:0])


@pytest.mark.slow
def test_the_lines_of_the_documentation_run(plain, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).resolve().parents[2] / "docs" / "howto" / "predict.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (lines,) = (block for block in blocks if "fedbary.predict(" in block)
    exec(lines, {"network": plain, "x": X, "y": Y})
    assert "brier" in capsys.readouterr().out and (tmp_path / "reliability.png").stat().st_size


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.arange(3), "y: 'ndarray'; expected a tensor"),
        (torch.tensor([0, 1, 2]), "from 0 to 2'; expected classes from 0 to 1, int64"),
        (torch.tensor([0, -1, 1]), "from -1 to 1'; expected classes from 0 to 1"),
        (torch.tensor([0.0, 1.0, 1.0]), "torch.float32 from 0.0 to 1.0'; expected classes"),
    ],
)
def test_labels_that_are_none_get_a_line(y, said):
    prediction = fedbary.predict(nn.Linear(2, 2), torch.zeros(3, 2), samples=1)
    refused(re.escape(said), fedbary.score, prediction, y)
    with pytest.raises(SettingError, match="x: 'ndarray'; expected a tensor"):
        fedbary.predict(nn.Linear(2, 2), np.zeros((3, 2)))
