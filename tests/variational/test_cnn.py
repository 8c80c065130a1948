"""The CNN: sizes, which layers are Gaussian, and the trunk and head that prediction uses."""

import pytest
import torch
from torch import Generator, nn

from fedbary import Posterior
from fedbary.errors import SettingError
from fedbary.models import build
from fedbary.models.cnn import LAYERS
from fedbary.variational.layers import drawing


def model(n, shape=(1, 28, 28), classes=10, seed=0, **parameters):
    return build("cnn", shape, classes, seed, n, -5.0, parameters)


@pytest.mark.parametrize("n", range(6))
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 15, 9), (1, 16, 28), (3, 32, 32), (1, 64, 64)])
def test_any_image_size_gives_logits(n, shape):
    net = model(n, shape, 7)
    with drawing(net, Generator().manual_seed(0)):
        assert net(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("n", range(6))
def test_exactly_the_last_n_layers_are_gaussian(n):
    posterior = Posterior.from_state_dict(model(n).state_dict())
    assert list(posterior.log_var) == [f"{name}.weight" for name in LAYERS[5 - n :]]
    assert set(posterior.mean) == {f"{n}.{p}" for n in LAYERS for p in ("weight", "bias")}


def test_the_papers_sizes():
    state = {name: tuple(t.shape) for name, t in model(0, (3, 32, 32)).state_dict().items()}
    assert state["conv1.weight"] == (6, 3, 5, 5)
    assert state["conv2.weight"] == (16, 6, 5, 5)
    assert state["fc1.weight"] == (120, 400)
    assert state["fc2.weight"] == (84, 120)
    assert state["fc3.weight"] == (10, 84)


def test_without_variational_layers_it_is_the_plain_cnn():
    net, x = model(0), torch.rand(4, 1, 28, 28)
    plain = nn.Sequential(
        net.conv1, nn.ReLU(), nn.MaxPool2d(2), net.conv2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        net.fc1, nn.ReLU(), net.fc2, nn.ReLU(), net.fc3,
    )  # fmt: skip
    torch.testing.assert_close(net(x), plain(x))
    with torch.inference_mode():
        torch.testing.assert_close(net(x), plain(x))


@pytest.mark.parametrize("initialisation", ["he", "papers"])
def test_the_seed_decides_every_tensor(initialisation):
    one, same, other = (
        model(2, seed=s, initialisation=initialisation).state_dict() for s in (0, 0, 1)
    )
    constant = ("log_var", "bias") if initialisation == "he" else ("log_var",)
    for name, tensor in one.items():
        assert torch.equal(tensor, same[name])
        if not name.endswith(constant):
            assert not torch.equal(tensor, other[name])


@pytest.mark.parametrize("layers", [0, 5])
def test_he_s_initialisation_has_the_variance_that_relus_keep(layers):
    net = model(layers, (3, 32, 32), 100, initialisation="he")
    for name in LAYERS:
        layer = net.get_submodule(name)
        weight = layer.weight_mean if layers else layer.weight
        expected, count = 2 / weight[0].numel(), weight.numel()
        assert abs(weight.var() / expected - 1) < 5 * (2 / count) ** 0.5
        assert not layer.bias.any()


@pytest.mark.parametrize("arguments", [((1, 28, 28), 10, 6), ((1, 28, 28), 10, -1),
                                       ((28, 28), 10, 3), ((1, 3, 28), 10, 3),
                                       ((1, 28, 3), 10, 3), ((1, 28, 28), 1, 3)])  # fmt: skip
def test_what_it_cannot_build_is_refused(arguments):
    with pytest.raises(SettingError):
        shape, classes, n = arguments
        model(n, shape, classes)


def test_signed_pixels_are_seen_from_minus_one_to_one():
    x = torch.rand(3, 1, 12, 12)
    plain, signed = (model(2, (1, 12, 12), 4, pixels=pixels) for pixels in ("unit", "signed"))
    torch.testing.assert_close(signed.trunk(x), plain.trunk(2 * x - 1))
    torch.testing.assert_close(signed(x), plain(2 * x - 1))
