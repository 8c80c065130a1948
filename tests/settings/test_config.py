"""Settings: one place of defaults, a fixed order of precedence, errors of one line."""

import tomllib
from pathlib import Path

import pytest
import run_config_keys
import yaml
from flwr.common.config import fuse_dicts, parse_config_args
from refusals import refused

from fedbary.aggregation import DIVERGENCES, RULES
from fedbary.attacks import attack_named
from fedbary.errors import SettingError
from fedbary.methods import METHODS
from fedbary.models import MODELS, build
from fedbary.settings.config import DEFAULTS, Settings, parse_overrides, resolve, validated
from fedbary.settings.modes import Synchronous
from fedbary.settings.owners import layers_of, models, owners
from fedbary.settings.run_config import resolve_run_config, to_run_config
from fedbary.settings.task_words import OfAdapters, OfClasses, OfGuarantees, OfImages, OfRows
from fedbary.variational.layers import convertible_layers

ROOT = Path(__file__).resolve().parents[2]


def test_simulation_yaml_names_every_setting_and_no_other():
    values = yaml.safe_load(DEFAULTS.read_text())
    values.pop("protocols")
    owned = {name for parts in owners().values() for own in parts.values() for name in own}
    for task in values.pop("tasks").values():
        assert task.keys() <= Settings.model_fields.keys() | owned
    assert values.pop("on_features").keys() <= Settings.model_fields.keys()
    assert set(values) == set(Settings.model_fields)


def test_pyproject_has_a_run_config_key_for_each_setting_and_is_no_second_place_of_defaults():
    """If not: PYTHONPATH=. python tests/run_config_keys.py."""
    project = (ROOT / "pyproject.toml").read_text()
    assert run_config_keys.text() in project
    flower = tomllib.loads(project)["tool"]["flwr"]
    assert {*flower["app"]["config"].values()} == {""}
    assert resolve_run_config(flower["app"]["config"]) == resolve({})
    assert "federations" not in flower


@pytest.mark.parametrize("words", [
    "rule='WB' rounds=3", "method='FedProx' mu=0.1 lr=0.02", "task='tables' hidden-units=8",
    "classes='benign, malignant' input_shape='1x8x8' pictures=false", "local-epochs=1 clients=4",
    "method='PVI' inference='laplace' covariance='full'", "seed=3 holdout=0.2 conformal=0.9",
    "partition='iid' settings='rounds=2'", "mode='async' buffer=2",
    "dataset='breast_cancer' task='tables'",
])  # fmt: skip
def test_flower_s_own_run_config_is_the_command_line_s_words(words):
    """Read and fused as Flower does: a key that pyproject.toml lacks would be refused there."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    given = parse_config_args([words])
    fused = fuse_dicts(listed, {key.replace("-", "_"): value for key, value in given.items()})
    own = {key: value for key, value in given.items() if key != "settings"}
    more = parse_overrides(str(given.get("settings", "")).split())
    assert resolve_run_config(fused) == resolve_run_config(given)
    assert resolve_run_config(given) == resolve(
        {k.replace("-", "_"): v for k, v in own.items()} | more
    )


def test_a_setting_has_one_value_in_a_run_config():
    with pytest.raises(SettingError, match="^rounds: 3; expected one value"):
        resolve_run_config({"rounds": 3, "settings": "rounds=2"})


def test_no_setting_has_a_default_in_code():
    assert all(field.is_required() for field in Settings.model_fields.values())


def test_later_sources_override_earlier_ones(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("rounds: 7\nlocal_epochs: 3\nece_bins: 20\nprotocol: paper\n")
    settings = resolve({"rounds": 2}, file)
    assert settings.rounds == 2  # the command line, over the preset
    assert settings.local_epochs == 50  # the preset, over the file
    assert settings.clients == 10  # simulation.yaml
    assert resolve({"protocol": "none"}, file).ece_bins == 20  # the file, over simulation.yaml


def test_a_file_may_bring_presets_of_its_own(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("protocols:\n  tiny: {rounds: 1, samples: 2}\n")
    assert resolve({"protocol": "tiny"}, file).samples == 2


def test_the_paper_preset_is_the_image_protocol():
    paper = resolve({"protocol": "paper"})
    protocol = {
        "clients": 10, "participation": 1.0, "partition": "dirichlet", "alpha": 0.5,
        "rounds": 50, "local_epochs": 50, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5,
        "batch_size": 64, "init_log_var": -9.0, "inference": "clamped_sgd", "log_var_lr": 0.01,
        "prior": "normal", "prior_std": 1.0,
        "samples": 10, "ece_bins": 100, "holdout": 0.0, "kl_weight": 1.0, "min_examples": 10,
    }  # fmt: skip
    assert protocol.items() <= paper.model_dump().items()


@pytest.mark.parametrize("model", [name for name in MODELS if layers_of(name)])
def test_no_more_layers_are_gaussian_by_default_than_a_network_has(model):
    layers = len(convertible_layers(build(model, (1, 8, 8), 3, seed=0)))
    usual = resolve({}).bayesian_layers
    assert resolve({"model": model}).bayesian_layers == min(layers, usual)
    assert resolve({"model": model, "bayesian_layers": layers}).bayesian_layers == layers
    with pytest.raises(SettingError, match=f"from 0 to {layers}, the layers of model={model}"):
        resolve({"model": model, "bayesian_layers": layers + 1})


def test_a_run_config_holds_words():
    assert resolve_run_config({"settings": ""}) == resolve({})
    words = """rule=WB   # as on the command line
        rounds=3 classes="benign, malignant" output='a b#c'"""
    given = {"rule": "WB", "rounds": 3, "classes": "benign, malignant", "output": "a b#c"}
    assert resolve_run_config({"settings": words}) == resolve(given)
    refused("settings", resolve_run_config, {"settings": "output='a"})


@pytest.mark.parametrize(
    ("words", "unused"),
    [("method=FedPA kl_weight=3", "kl_weight"), ("rounds=2 trim_fraction=0.1", "trim_fraction")],
)
def test_a_run_config_names_no_setting_without_use(words, unused):
    refused(f"^{unused}: .*does not use it", resolve_run_config, {"settings": words})


@pytest.mark.parametrize("changes", [
    {}, {"protocol": "paper"}, {"task": "regression"}, {"method": "FedPA", "rho": 0.25},
    {"method": "PVI"}, {"output": "ü \U0001f600 'x' \"y\" #", "seed": 2**62, "lr": 1 / 3},
])  # fmt: skip
def test_settings_come_back_from_the_run_config_that_is_written(changes):
    settings = resolve(changes)
    assert resolve_run_config(tomllib.loads(to_run_config(settings))) == settings


def test_command_line_words_become_typed_values():
    words = ["lr=1e-3", "rule=WB", "download=false", "rounds=3", "output=2024"]
    words += ["gpus_per_client=0.5"]
    settings = resolve(parse_overrides(words))
    assert (settings.lr, settings.rule, settings.download) == (1e-3, "WB", False)
    assert (settings.rounds, settings.output) == (3, "2024")
    assert settings.gpus_per_client == 0.5
    assert parse_overrides(["output=a=b"]) == {"output": "a=b"}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"rule": "RKBL"}, ("rule", "RKBL", "RKLB, ", "TrimmedMean, WB")),
        ({"ruel": "WB"}, ("ruel", "rule")),
        ({"protocol": "papr"}, ("protocol", "papr", "none, paper, short")),
        ({"bayesian_layers": 6}, ("bayesian_layers", "6", "0 to 5")),
        ({"model": "resnet"}, ("model", "resnet", "resnet20", "package.module:factory")),
        ({"model": "nets:"}, ("model", "nets:", "package.module:factory")),
        ({"alpha": 0}, ("alpha", "0", "above 0")),
        ({"alpha": float("nan")}, ("alpha", "nan", "above 0")),
        ({"rounds": 0}, ("rounds", "0", "from 1")),
        ({"batch_size": 10**21}, ("batch_size", f"{10**21}", "from 1 to 1000000000")),
        ({"rounds": "many"}, ("rounds", "many", "whole number")),
        ({"participation": 1.5}, ("participation", "1.5", "to 1")),
        ({"gpus_per_client": "all"}, ("gpus_per_client", "all", "auto")),
        ({"inference": "ivon", "kl_weight": 0}, ("kl_weight", "0", "inference=ivon")),
        ({"min_replies": 11}, ("min_replies", "11", "10 clients")),
        ({"protocol": ["paper"]}, ("protocol", "paper", "none, paper, short")),
        ({"engine": "spark"}, ("engine", "spark", "ray, inline")),
    ],
)
def test_errors_are_one_line_with_the_setting_its_value_and_what_is_allowed(overrides, said):
    with pytest.raises(SettingError) as caught:
        resolve(overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in said)


def test_settings_that_are_complete_pass_through_flower_and_files_unchanged(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("protocols:\n  tiny: {rounds: 1, lr: 0.2}\n")
    settings = resolve({"protocol": "tiny", "lr": 0.5}, file)
    assert (settings.rounds, settings.lr) == (1, 0.5)
    assert resolve_run_config(settings.model_dump()) == settings
    assert validated(yaml.safe_load(yaml.safe_dump(settings.model_dump()))) == settings


@pytest.mark.parametrize("protocols", ["3", "[a]", "{mine: 1}", "{mine: }"])
def test_presets_of_another_form_are_refused(tmp_path, protocols):
    file = tmp_path / "mine.yaml"
    file.write_text(f"protocols: {protocols}\n")
    refused("mine.yaml: protocols", resolve, {"protocol": "mine"}, file)


@pytest.mark.parametrize("content", ["- a\n- b\n", "rounds: [1\n", "", "\x00"])
def test_files_that_are_no_settings_are_refused_by_name(tmp_path, content):
    file = tmp_path / "broken.yaml"
    file.write_text(content)
    refused("broken.yaml", resolve, {}, file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    refused("absent.yaml", resolve, {}, tmp_path / "absent.yaml")


@pytest.mark.parametrize("word", ["rounds", "=3"])
def test_words_that_set_nothing_are_refused(word):
    refused("key=value", parse_overrides, [word])


def test_fairness_is_measured_every_so_many_rounds_and_in_the_last():
    settings = resolve({"rounds": 7, "evaluate_clients": 3})
    assert [r for r in range(1, 8) if settings.measures_clients(r)] == [3, 6, 7]
    never = resolve({"rounds": 7, "evaluate_clients": 0})
    assert not any(never.measures_clients(r) for r in range(1, 8))


def test_a_cosine_falls_from_the_rate_towards_nothing():
    settings = resolve({"lr": 0.4, "lr_schedule": "cosine", "rounds": 4})
    rates = [settings.local.lr_in(t, 4) for t in (1, 2, 3, 4)]
    assert rates[0] == 0.4 and rates[2] == pytest.approx(0.2)
    assert rates == sorted(rates, reverse=True) and 0 < rates[3] < 0.1
    constant = resolve({"lr": 0.4, "lr_schedule": "constant", "rounds": 4})
    assert {constant.local.lr_in(t, 4) for t in (1, 4)} == {0.4}


def test_the_parts_of_a_run_are_typed_values_of_its_words():
    words = {"holdout": 0.2, "conformal": 0.9, "participation": 0.5, "lr": 0.3, "prior": "global"}
    settings = resolve({**words, "attack": "scaling", "hostile_fraction": 0.3})
    assert settings.of_task(OfImages).conformal == settings.of_task(OfGuarantees).conformal == 0.9
    assert (settings.local.lr, settings.local.prior) == (0.3, "global")
    assert isinstance(settings.pace, Synchronous) and settings.pace.participation == 0.5
    assert settings.hostile == attack_named("scaling", {"hostile_fraction": 0.3})
    assert resolve({}).hostile is None


def test_parts_follow_words_that_change():
    settings = resolve({"lr": 0.3})
    assert settings.local.lr == 0.3 and settings.pace.speeds == "none"
    changed = settings.model_copy(update={"lr": 0.1, "speeds": "uniform", "backbone": "a:b"})
    assert (changed.local.lr, changed.pace.has_clock) == (0.1, True)
    assert changed.of_task(OfImages).backbone == "a:b"


def test_a_task_without_some_settings_has_those_that_ask_for_nothing():
    numbers = resolve({"task": "regression", "target": "a", "conformal": 0.9, "holdout": 0.2})
    assert numbers.of_task(OfClasses) == OfClasses(conformal=0.9)
    assert numbers.of_task(OfAdapters).adapters == "none"
    assert numbers.of_task(OfRows).target == "a"


def test_clients_without_steps_pass_once_over_their_data():
    settings = resolve({"method": "LDA"})
    assert (settings.local.local_epochs, settings.local.lr_schedule) == (1, "constant")


def test_images_learn_from_normalised_pixels_unless_another_range_is_named():
    assert resolve({}).normalise == "channels"
    assert resolve({"pixels": "signed"}).normalise == "none"
    refused("normalise: 'channels'", resolve, {"pixels": "signed", "normalise": "channels"})


def test_methods_that_sample_along_their_steps_keep_the_step_size():
    assert {resolve({"method": name}).lr_schedule for name in ("FALD", "SWAG")} == {"constant"}
    assert resolve({"method": "SGLD", "lr_schedule": "cosine"}).lr_schedule == "cosine"
    assert {resolve(m).lr_schedule for m in ({}, {"method": "FedProx"})} == {"cosine"}


def test_a_setting_that_is_missing_is_named_alone():
    values = resolve({}).model_dump()
    del values["max_weight_ratio"]
    refused("^max_weight_ratio: 'missing'; expected .{,60}$", validated, values)


def test_a_method_brings_its_parameters_with_the_paper_s_defaults():
    assert resolve({"method": "FedPA"}).rho == 0.1
    assert resolve({"method": "FedPA", "rho": "0.5"}).rho == 0.5
    assert resolve({"method": "FedPA"}).server_momentum == 0.9
    assert resolve({}).server_momentum == 0.0
    assert resolve({"method": "FedPA"}).bayesian_layers == 0  # it trains point weights
    assert resolve({"method": "FedPA", "rho": 0.5}) != resolve({"method": "FedPA", "rho": 0.6})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"method": "PVI", "burn_in": 1}, ["burn_in", "damping", "FedPA"]),
        ({"burn_in": 1}, ["burn_in", "barycentre", "FedPA"]),
        ({"method": "FedPA", "burn_in": 1.5}, ["burn_in", "whole number"]),
        ({"method": "FedPA", "rho": "much"}, ["rho", "a number"]),
        ({"method": "FedP"}, ["method", "FedPA"]),
        ({"method": "FedPA", "burn": 1}, ["burn", "burn_in"]),
    ],
)
def test_a_parameter_of_another_method_or_kind_is_refused_with_what_is_allowed(changes, named):
    with pytest.raises(SettingError) as caught:
        resolve(changes)
    assert all(word in str(caught.value) for word in named)


def test_a_method_and_a_network_do_not_share_a_parameters_name():
    for method in METHODS:
        for model, own in models().items():
            try:
                found = resolve({"method": method, "model": model, "bayesian_layers": 0})
            except SettingError:
                continue
            for name, parameter in own.items():
                parameter.check(getattr(found, name))
    refused("model: 'resnet20'.*DSVGD.*width", resolve, {"method": "DSVGD", "model": "resnet20"})


def test_projection_is_refused_where_what_clients_keep_is_no_model():
    for method in ("SCAFFOLD", "FedDyn"):
        refused(f"projection.*{method}", resolve, {"method": method, "projection": "WB"})


def test_scaffold_takes_posteriors_of_gaussian_layers_alone():
    for inference in ("curvature", "ivon", "natural_gradient"):
        words = {"method": "SCAFFOLD", "inference": inference}
        refused(f"bayesian_layers: 0; expected 1 or more for inference={inference}", resolve, words)
        assert resolve({**words, "bayesian_layers": 1}).bayesian_layers == 1
    assert resolve({"method": "SCAFFOLD"}).bayesian_layers == 0


def test_projection_takes_the_rules_that_make_a_divergence_least_and_no_other():
    for rule in RULES:
        if rule in DIVERGENCES:
            assert resolve({"projection": rule}).projection == rule
        else:
            refused(f"projection: '{rule}'; expected none, ", resolve, {"projection": rule})
