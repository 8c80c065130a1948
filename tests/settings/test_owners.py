"""A part owns its settings: a run has those of its parts, and no others."""

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
from every_method import task_words

from fedbary.errors import SettingError
from fedbary.inference import INFERENCE, Local, PosteriorParameters, local_method, variational
from fedbary.parts.parameters import Share
from fedbary.settings.config import Settings, resolve
from fedbary.settings.owners import owned, owned_by, owners
from fedbary.settings.uses import require_used

BESIDE = {"inference=laplace": {"method": "PVI"}, "task=regression": {}}
"""What a part cannot be chosen without."""


def chosen_part(setting, name):
    """A run with a part; None where it goes with no other default."""
    also = task_words(name) if setting == "method" else {}
    try:
        return resolve({setting: name, **also, **BESIDE.get(f"{setting}={name}", {})})
    except SettingError:
        return None


PARTS = [(setting, name) for setting, parts in owners().items() for name in parts]


@pytest.mark.parametrize(("setting", "name"), PARTS, ids="=".join)
def test_a_run_has_what_its_parts_own_and_refuses_what_others_do(setting, name):
    if (settings := chosen_part(setting, name)) is None:
        pytest.skip("it needs more than a default run has")
    own = {word for parameters in owned_by(settings).values() for word in parameters}
    assert settings.model_dump().keys() == Settings.model_fields.keys() | own
    others = {word for parameters in owners()[setting].values() for word in parameters}
    for word in others - own - Settings.model_fields.keys():
        said = rf"^{word}: 1; .* does not use it; (it uses |.* do$)"
        with pytest.raises(SettingError, match=said):
            require_used({word: 1}, settings)


def test_parts_are_chosen_by_several_settings_and_most_own_something():
    assert {setting for setting, _ in PARTS} > {"attack", "inference", "model", "partition", "task"}
    assert owned("attack", "none") == owned("dataset", "digits") == {}
    assert sum(bool(owned(*part)) for part in PARTS) > len(PARTS) / 2


def test_a_wrong_value_is_refused_with_the_part_that_owns_it():
    with pytest.raises(SettingError, match=r"^hostile_fraction: 2.* to 1 for attack=scaling$"):
        resolve({"attack": "scaling", "hostile_fraction": 2})
    with pytest.raises(SettingError, match="^kl_weight: 0.* above 0 for inference=ivon$"):
        resolve({"inference": "ivon", "kl_weight": 0})


@dataclass(frozen=True)
class Parameters(PosteriorParameters):
    """What a method of this test can be told.

    Parameters
    ----------
    part : float
        A part of the rates.
    """

    part: Share = 0.25


def test_a_local_method_is_called_with_its_own_parameters(monkeypatch):
    module = ModuleType("fedbary.inference.parting")
    module.Parameters, module.fit = Parameters, lambda local, parameters: {"part": parameters.part}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("fedbary.inference.INFERENCE", (*INFERENCE, "parting"))
    local = Local(None, None, None)
    assert local_method("parting")(local) == {"part": 0.25}
    assert local_method("parting", {"part": 0.5})(local) == {"part": 0.5}
    assert local_method("variational", {"part": 0.5}) is variational.fit


def test_no_method_owns_a_setting_that_deals_the_data():
    """DSVGD had an `alpha` of its own once, and its runs dealt data at that skew."""
    every = owners()
    dealt = {
        name for part in ("partition", "task", "mode") for p in every[part].values() for name in p
    }
    for part in ("method", "rule", "inference", "attack"):
        for name, settings in every[part].items():
            assert not settings.keys() & dealt, (part, name)
