"""What the code says of its parts is what the code does."""

import re

import yaml
from refusals import refused

from fedbary.aggregation import RULES
from fedbary.attacks import ATTACKS, OMNISCIENT
from fedbary.data.partition import PARTITIONS
from fedbary.inference import INFERENCE
from fedbary.methods import METHODS
from fedbary.parts.registry import modules
from fedbary.settings.config import DEFAULTS, Settings
from fedbary.settings.explain import explained, overview, parts, settings


def test_every_part_is_listed_with_its_purpose():
    listed = {(part.setting, part.name) for part in parts()}
    assert {name for setting, name in listed if setting == "method"} == METHODS.keys()
    assert {name for setting, name in listed if setting == "rule"} == RULES.keys()
    assert {name for setting, name in listed if setting == "inference"} == set(INFERENCE)
    assert {name for setting, name in listed if setting == "task"} == set(modules("tasks"))
    assert {name for setting, name in listed if setting == "attack"} == {*ATTACKS, *OMNISCIENT}
    assert {name for setting, name in listed if setting == "partition"} >= set(PARTITIONS)
    presets = yaml.safe_load(DEFAULTS.read_text())["protocols"]
    assert {name for setting, name in listed if setting == "protocol"} == presets.keys()
    assert all(part.purpose for part in parts())
    shown = overview()
    assert all(part.name in shown for part in parts())


def test_a_protocol_is_explained_by_its_settings():
    presets = yaml.safe_load(DEFAULTS.read_text())["protocols"]
    for name, preset in presets.items():
        (shown,) = re.findall(r"(?ms)^    .*", explained(name))
        assert yaml.safe_load(shown) == preset


def test_every_setting_has_a_meaning():
    assert settings().keys() == Settings.model_fields.keys()
    assert [name for name, text in settings().items() if not text.partition("  ")[2]] == []


def test_a_method_a_setting_and_a_typo_are_explained():
    assert "cavity" in explained("pvi") and "damping=" in explained("PVI")
    assert "mean cross-entropy" in explained("kl_weight")
    assert "FedPA" in explained("rho")
    refused("a part .* perhaps kl_weight", explained, "kl_wight")
