"""A setting that a run would leave unused is refused by name, with what is used instead."""

import pytest

from fedbary.errors import SettingError
from fedbary.settings.config import resolve
from fedbary.settings.uses import require_used


@pytest.mark.parametrize(
    ("overrides", "unused", "named"),
    [
        ({"method": "FedPA", "kl_weight": 0.1}, "kl_weight", ["FedPA", "rho"]),
        ({"method": "FedPA", "rule": "WB"}, "rule", ["FedPA"]),
        ({"method": "PVI", "prior": "global"}, "prior", ["PVI", "damping"]),
        ({"rule": "RKLB", "trim_fraction": 0.1}, "trim_fraction", ["RKLB"]),
        ({"hidden_units": 20}, "hidden_units", ["model=cnn", "pixels"]),
        ({"task": "regression", "kl_weight": 0.1}, "kl_weight", ["FedAG"]),
        ({"task": "regression", "momentum": 0.5}, "momentum", ["FedAG", "batch_size"]),
        ({"task": "regression", "rule": "WB"}, "rule", ["FedAG", "estimator"]),
        ({"noise": 0.5}, "noise", ["task=classification"]),
        ({"task": "regression", "specificity": 0.9}, "specificity", ["task=regression", "noise"]),
        ({"task": "tables", "input_shape": "1x8x8"}, "input_shape", ["class_weights"]),
        ({"hostile_fraction": 0.1}, "hostile_fraction", ["attack"]),
        ({"partition": "iid", "alpha": 1.0}, "alpha", ["iid"]),
    ],
)
def test_what_has_no_use_is_refused(overrides, unused, named):
    with pytest.raises(SettingError) as caught:
        require_used(overrides, resolve(overrides))
    assert caught.value.setting == unused
    assert all(word in str(caught.value) for word in named)


@pytest.mark.parametrize(
    "overrides",
    [
        {"method": "FedPA", "rho": 0.1, "server_momentum": 0.5, "lr": 0.1},
        {"method": "PVI", "prior_std": 0.5, "kl_weight": 1.0, "inference": "ivon"},
        {"rule": "MultiKrum", "trim_fraction": 0.1, "attack": "scaling", "hostile_fraction": 0.1},
        {"task": "regression", "hidden_units": 20, "noise": "none", "alpha": 1.0,
         "partition": "quantity"},
        {"task": "tables", "specificity": 0.9, "class_weights": "balanced", "classes": "a,b"},
        {"model": "resnet20", "width": 8, "groups": 4, "pixels": "signed"},
    ],
)  # fmt: skip
def test_what_is_used_passes(overrides):
    require_used(overrides, resolve(overrides))


def test_a_network_brings_its_parameters():
    assert resolve({"model": "resnet20", "width": "32"}).width == 32
    with pytest.raises(SettingError, match="resnet20"):
        resolve({"width": 32})
    with pytest.raises(SettingError, match="whole number"):
        resolve({"model": "resnet20", "width": 1.5})
