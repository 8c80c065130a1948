"""Prediction is the mean softmax of the drawn networks, whatever the batches."""

import pytest
import torch
from torch import Generator

from fedbary.models import BayesianCNN
from fedbary.prediction import predict


def model(n, log_var=-3.0):
    net = BayesianCNN((1, 12, 12), 5, n)
    net.reset(log_var, seed=0)
    return net


@pytest.mark.parametrize("n", range(6))
def test_it_is_the_mean_softmax_of_the_drawn_networks(n):
    net, x = model(n), torch.rand(9, 1, 12, 12)
    probs = predict(net, x, 7, Generator().manual_seed(1)).probs
    with torch.inference_mode():
        weights = net.sample_head(7, Generator().manual_seed(1))
        expected = net.head_logits(net.trunk(x), weights).softmax(-1).mean(0)
    torch.testing.assert_close(probs, expected)
    torch.testing.assert_close(probs.sum(1), torch.ones(9))


def test_an_image_is_judged_alike_whatever_stands_beside_it():
    net, x = model(3), torch.rand(10, 1, 12, 12)
    whole = predict(net, x, 5, Generator().manual_seed(1)).probs
    parts = predict(net, x, 5, Generator().manual_seed(1), batch_size=3).probs
    torch.testing.assert_close(whole, parts)


def test_uint8_images_are_scaled_to_one():
    net, x = model(2), torch.randint(0, 256, (4, 1, 12, 12), dtype=torch.uint8)
    ours = predict(net, x, 3, Generator().manual_seed(1)).probs
    scaled = predict(net, x.float() / 255, 3, Generator().manual_seed(1)).probs
    torch.testing.assert_close(ours, scaled)


def test_more_samples_approach_the_posterior_predictive():
    net, x = model(3, log_var=-2.0), torch.rand(10, 1, 12, 12)
    truth = predict(net, x, 5_000, Generator().manual_seed(2), batch_size=5).probs
    errors = [
        (predict(net, x, s, Generator().manual_seed(1)).probs - truth).abs().mean()
        for s in (4, 200)
    ]
    assert errors[1] < errors[0] / 4


def test_no_gradient_and_no_change_of_the_model():
    net, x = model(3), torch.rand(2, 1, 12, 12)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert not predict(net, x, 2, Generator().manual_seed(0)).probs.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_entropy_splits_into_aleatoric_and_epistemic():
    net, x = model(3, log_var=-2.0), torch.rand(20, 1, 12, 12)
    prediction = predict(net, x, 50, Generator().manual_seed(1), batch_size=7)
    with torch.inference_mode():
        drawn = net.head_logits(net.trunk(x), net.sample_head(50, Generator().manual_seed(1)))
    probs = drawn.softmax(-1).double()
    each = -(probs * probs.log()).sum(-1)
    kl = (probs * (probs.log() - probs.mean(0).log())).sum(-1)
    assert prediction.epistemic.min() > 0
    torch.testing.assert_close(prediction.aleatoric.double(), each.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(prediction.epistemic.double(), kl.mean(0), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(prediction.entropy, prediction.aleatoric + prediction.epistemic)


def test_a_single_network_has_no_epistemic_uncertainty():
    prediction = predict(model(0), torch.rand(20, 1, 12, 12), 5, Generator().manual_seed(1))
    assert prediction.epistemic.max() < 1e-6 < prediction.aleatoric.min()
