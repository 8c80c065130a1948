"""A rule, a method or an attack of one's own, `package.module:NAME`, is a run's part like any."""

import pickle
import sys

import pytest
import torch
import yaml
from flwr.app import ConfigRecord

import fedbary
from fedbary.aggregation import rule_named
from fedbary.commands import start
from fedbary.errors import SettingError
from fedbary.report.report import write_report
from fedbary.runs.own_code import code_config
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve, validated
from fedbary.settings.explain import explained
from fedbary.strategies import MethodStrategy, PosteriorStrategy, strategy_for
from fedbary.strategies.client import Request
from fedbary.strategies.method_strategy import METHOD_KEY

RULE, METHOD = {"rule": "own_parts:RULE"}, {"method": "own_parts:Near"}
ATTACK = {"attack": "own_parts:Turned", "hostile_fraction": 0.5}
QUICK = {
    "engine": "inline", "device": "cpu", "pictures": False, "clients": 2, "rounds": 2,
    "local_epochs": 1, "train_fraction": 0.2, "model": "mlp", "evaluate_clients": 0,
}  # fmt: skip


def test_parameters_are_settings():
    settings = resolve({**RULE, "exponent": "0.5"})
    assert (settings.exponent, settings.strategy) == (0.5, "PowerMean")
    assert validated(settings.model_dump()) == settings
    assert "exponent" not in dict(resolve({"rule": "own_parts:ALONE"}))
    settings = resolve({**METHOD, "times": "3", "mu": 0.1})
    assert (settings.times, settings.mu, settings.strategy) == (3.0, 0.1, "Near")
    assert settings.bayesian_layers == 0
    assert "exponent=1.0  The power of variances" in explained(RULE["rule"])
    assert "times=1.0  The factor of the pull" in explained(METHOD["method"])
    assert "times=1.0  The negative of the factor" in explained(ATTACK["attack"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({**RULE, "exponent": 0}, "^exponent: 0.* above 0 for rule=own_parts:RULE$"),
        ({"rule": "own_parts:ALONE", "exponent": 1}, "^unknown setting: 'exponent'"),
        ({"rule": "RKLB", "exponent": 1}, "^unknown setting: 'exponent'"),
        ({"rule": "own_parts:ALONE", "trim_fraction": 0.1}, "^trim_fraction: .* does not use it"),
        ({"rule": "absent:RULE"}, "^rule: 'absent:RULE'.*No module named 'absent'"),
        ({"rule": "own_parts:Near"}, "^rule: .* of fedbary.aggregation, not a type$"),
        ({"rule": "own_parts:NAMESAKE"}, "^rule: .* a rule with a name of its own, not WB$"),
        ({"rule": "Mine"}, r"^rule: 'Mine'; expected .*, or package\.module:RULE$"),
        ({"method": "Mine"}, r"^method: 'Mine'; expected .*, or package\.module:Class$"),
        ({"method": "own_parts:RULE"}, r"^method: .* a class below fedbary\.methods\.Method$"),
        ({"method": "own_parts:FedProx"}, "^method: .* the name where the class lies, FedProx$"),
        ({"method": "own_parts:Untyped"}, r"^own_parts: 'Untyped'; expected @dataclass"),
        ({**METHOD, "bayesian_layers": 1}, "^bayesian_layers: 1; expected 0 for method=Near"),
        ({**METHOD, **RULE}, "^rule: .* no value: method=own_parts:Near does not use it"),
        ({"attack": "Mine"}, r"^attack: 'Mine'; expected .*, or package\.module:Class$"),
        ({"attack": "own_parts:Near"}, r"^attack: .* a class below Attack or OmniscientAttack of"),
        ({**ATTACK, "times": -1}, "^times: -1.* above 0 for attack=own_parts:Turned$"),
        ({**METHOD, "times": -1}, "^times: -1.* above 0 for method=own_parts:Near$"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(words, said):
    with pytest.raises(SettingError, match=said) as caught:
        resolve(words)
    assert "\n" not in str(caught.value)


def test_a_rule_of_its_parameters_must_be_one(monkeypatch):
    import own_parts

    monkeypatch.setattr(own_parts, "rule", lambda own: own.nothing)
    with pytest.raises(SettingError, match=r"^rule: .* whose rule\(own\) makes a rule .*nothing"):
        rule_named("own_parts:RULE")
    monkeypatch.setattr(own_parts, "rule", lambda own: 3)
    with pytest.raises(SettingError, match=r"\(TypeError: it returns a int\)$"):
        rule_named("own_parts:RULE")


@pytest.mark.parametrize(
    ("mine", "known"),
    [
        ({"rule": "own_parts:ALONE"}, {"rule": "WB"}),
        ({**METHOD, "mu": 0.1, "times": 2}, {"method": "FedProx", "mu": 0.2}),
        (ATTACK, {**ATTACK, "attack": "sign_flip"}),
    ],
)
def test_a_run_is_that_of_the_library_s_part_that_computes_the_same(mine, known, tmp_path):
    posteriors = []
    for name, words in {"mine": mine, "known": known}.items():
        run_inline(resolve({**QUICK, **words}), tmp_path / name)
        posteriors.append((tmp_path / name / "posterior.safetensors").read_bytes())
    assert posteriors[0] == posteriors[1]


def test_a_run_goes_on_to_the_same_bits_is_loaded_and_reported(tmp_path, monkeypatch):
    words = {**QUICK, **RULE, "exponent": 0.5, "bayesian_layers": 1}
    run_inline(resolve(words), tmp_path / "whole")
    run_inline(resolve({**words, "rounds": 1}), tmp_path / "run")
    settings = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())["settings"]
    assert (settings["rule"], settings["exponent"]) == (RULE["rule"], 0.5)
    monkeypatch.setattr(start, "_simulate", run_inline)
    start.resume(tmp_path / "run", "last", ["rounds=2"], own_code=True)
    whole, run = (
        fedbary.load(tmp_path / name, own_code=True).posterior for name in ("whole", "run")
    )
    assert all(torch.equal(whole.log_var[name], run.log_var[name]) for name in whole.log_var)
    assert (
        RULE["rule"]
        in write_report(tmp_path / "whole", own_code=True).with_suffix(".md").read_text()
    )


@pytest.mark.parametrize("words", [RULE, METHOD, ATTACK])
def test_its_code_is_a_part_of_the_run(words):
    setting = next(iter(words))
    told = code_config(resolve(words))
    assert told.keys() == {f"code-{setting}"}
    assert told == code_config(resolve({**words, "seed": 3}))


@pytest.mark.parametrize(
    ("name", "kind", "own"),
    [("own_parts:RULE", PosteriorStrategy, {}), ("own_parts:Near", MethodStrategy, {"times": 2})],
)
def test_a_strategy_in_python_takes_its_arguments_and_pickles(name, kind, own):
    strategy = strategy_for(name)(min_replies=2, **own)
    assert issubclass(strategy_for(name), kind) and strategy_for(name) is type(strategy)
    again = pickle.loads(pickle.dumps(strategy))
    assert type(again) is type(strategy) and again.method == strategy.method
    assert again.admission.min_replies == 2


def test_a_rule_s_strategy_has_its_rule_and_a_subclass_its_own():
    mine = strategy_for("own_parts:ALONE")

    class Own(mine):
        rule = rule_named("own_parts:MIDRANGE")

    assert mine().rule is rule_named("own_parts:ALONE")
    assert Own().rule.name == "Midrange" and mine(rule="WB").rule.name == "WB"


@pytest.mark.parametrize("entry", [METHOD_KEY, f"{METHOD_KEY}.rule"])
def test_a_message_makes_a_client_import_nothing(entry):
    config = ConfigRecord({METHOD_KEY: "FedBN", entry: "this:RULE"})
    with pytest.raises(SettingError, match="^method: 'this:RULE'; expected code that this client"):
        _ = Request(None, config, {}, None).method
    assert "this" not in sys.modules
