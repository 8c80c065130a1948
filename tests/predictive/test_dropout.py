"""MC dropout: FedAvg of a network whose dropout is kept in predictions."""

import pytest
import torch
from refusals import refused
from torch import Generator, nn

from fedbary import predict
from fedbary.models import build
from fedbary.predictive import Predictive
from fedbary.predictive.dropout import Dropout
from fedbary.predictive.predictor import Draws
from fedbary.settings.config import resolve


@pytest.mark.slow
def test_a_linear_layer_s_passes_have_the_variance_of_its_masks():
    """Var = Σ (θ x)² p / (1 − p), and the mean is that without dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 2))
    x = torch.rand(4, 6) + 0.5
    with torch.no_grad():
        passes = Dropout().answering(
            model, Predictive({}), Draws(20000, Generator().manual_seed(1))
        )(x)
        terms = (x[:, None, :] * model[1].weight).square().sum(-1)
        torch.testing.assert_close(passes.var(0), terms * 0.3 / 0.7, rtol=0.06, atol=0)
        torch.testing.assert_close(passes.mean(0), model[1](x), rtol=0, atol=0.03)


def network(rate, n=0, model="cnn"):
    return build(model, (1, 8, 8), 3, 0, n, parameters={"dropout": rate})


@pytest.mark.parametrize("model", ["cnn", "mlp"])
@pytest.mark.parametrize("n", [0, 2])
def test_a_rate_of_zero_is_the_plain_network_and_evaluation_is_without_masks(n, model):
    x = torch.rand(5, 1, 8, 8)
    plain, dropping = network(0.0, n, model), network(0.4, n, model)
    assert plain.state_dict().keys() == dropping.state_dict().keys()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, dropping.state_dict()[name])
    torch.testing.assert_close(plain(x), dropping.eval()(x))
    torch.testing.assert_close(plain.train()(x), plain.eval()(x))
    probs = [predict(net, x, 4, seed=0).probs for net in (plain, dropping)]
    torch.testing.assert_close(*probs)
    assert not torch.equal(dropping.train()(x), dropping.train()(x))


def test_passes_with_dropout_are_uncertain_and_of_a_rate_of_zero_are_not():
    x = torch.rand(5, 1, 8, 8)
    for rate, least, most in ((0.0, -1e-6, 1e-6), (0.5, 1e-6, 1.0)):
        found = Dropout().predict(
            network(rate), x, Predictive({}), Draws(50, Generator().manual_seed(0))
        )
        assert ((found.epistemic >= least) & (found.epistemic <= most)).all()


def test_the_rate_is_a_setting_of_networks_that_drop():
    words = {"rule": "FedAvg", "bayesian_layers": 0, "dropout": 0.2, "predictive": "dropout"}
    for model in ("cnn", "mlp"):
        assert resolve({**words, "model": model}).dropout == 0.2
        refused("dropout", network, 1.0, model=model)
    refused("dropout", resolve, {"model": "linear", "dropout": 0.2})
