"""A setting that a run would leave unused is refused by name, with what is used instead."""

import pytest

from fedbary.errors import SettingError
from fedbary.settings.config import completed, resolve


@pytest.mark.parametrize(
    ("overrides", "unused", "named"),
    [
        ({"method": "FedPA", "kl_weight": 0.1}, "kl_weight", ["FedPA", "rho"]),
        ({"method": "FedPA", "rule": "WB"}, "rule", ["FedPA"]),
        ({"method": "PVI", "prior": "global"}, "prior", ["PVI", "damping"]),
        ({"method": "FedEP", "prior_std": 0.5}, "prior_std", ["FedEP", "weight_decay"]),
        ({"method": "FedPop", "inference": "ivon"}, "inference", ["FedPop", "burn_in"]),
        ({"method": "FALD", "momentum": 0.5}, "momentum", ["FALD"]),
        ({"rule": "RKLB", "trim_fraction": 0.1}, "trim_fraction", ["RKLB"]),
        ({"hidden_units": 20}, "hidden_units", ["model=cnn", "pixels"]),
        ({"task": "regression", "momentum": 0.5}, "momentum", ["FedAG", "batch_size"]),
        ({"task": "regression", "specificity": 0.9}, "specificity", ["task=regression", "noise"]),
        ({"hostile_fraction": 0.1}, "hostile_fraction", ["it; attack=", " do"]),
        ({"partition": "iid", "alpha": 1.0}, "alpha", ["iid"]),
        ({"columns": "age"}, "columns", ["task=classification"]),
    ],
)
def test_what_has_no_use_is_refused(overrides, unused, named):
    with pytest.raises(SettingError, match="does not use it") as caught:
        resolve(overrides)
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
        {"model": "resnet20", "width": 8, "norm_groups": 4, "pixels": "signed"},
        {"method": "FedBN", "rule": "WB", "prior": "global", "prior_std": 0.5},
        {"method": "pFedBayes", "zeta": 1.0, "inference": "ivon", "lr": 0.1},
        {"method": "FedPop", "kl_weight": 0.1, "init_log_var": -4.0, "momentum": 0.5},
    ],
)  # fmt: skip
def test_what_is_used_passes(overrides):
    assert resolve(overrides) == completed(overrides)


@pytest.mark.parametrize("method", ["PVI", "DWC", "pFedVem", "FedPop"])
def test_a_share_of_the_prior_needs_a_method_that_takes_the_run_s_prior(method):
    with pytest.raises(SettingError, match=f"kl_weight: 'share'.*a number.* for method={method}"):
        resolve({"method": method, "kl_weight": "share"})


def test_parameters_that_a_method_has_from_the_barycentre_have_the_file_s_defaults(tmp_path):
    assert resolve({"method": "FedBN"}).strategy == "FedBN"
    file = tmp_path / "mine.yaml"
    file.write_text("rule: WB\n")
    assert resolve({"method": "FedBN"}, file).rule == resolve({}, file).strategy == "WB"


def test_a_network_brings_its_parameters():
    assert resolve({"model": "resnet20", "width": "32"}).width == 32
    with pytest.raises(SettingError, match="resnet20"):
        resolve({"width": 32})
    with pytest.raises(SettingError, match="whole number"):
        resolve({"model": "resnet20", "width": 1.5})


@pytest.mark.parametrize("method", ["barycentre", "PVI", "FedAvgM"])
def test_all_of_a_run_s_settings_resolve_to_themselves(method):
    settings = resolve({"method": method, "rounds": 3})
    assert resolve(settings.model_dump()) == settings


@pytest.mark.parametrize("noise", ["learned", "0.5"])
def test_laplace_sites_of_a_regression_are_refused_before_the_run(noise):
    words = {"method": "PVI", "inference": "laplace", "covariance": "full", "model": "linear"}
    with pytest.raises(SettingError, match="^inference: .*laplace is for classes"):
        resolve({"task": "regression", **words, "bayesian_layers": 0, "noise": noise})
