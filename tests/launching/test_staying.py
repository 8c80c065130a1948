"""The service of a federation that stays: the folders alone say what it does next."""

from pathlib import Path

import pytest

from fedbary.errors import RunError, SettingError
from fedbary.launching.staying import next_run
from fedbary.runs.lock import only_writer
from fedbary.settings.config import DEFAULTS

GIVEN = {"method": "LDA", "new_examples": 50}


def begun(place, number, whole=False):
    folder = place / f"{number:04d}"
    folder.mkdir(parents=True)
    (folder / "settings.yaml").touch()
    if whole:
        (folder / "posterior.safetensors").touch()
    return folder


def next_of(place, **changes):
    found = next_run(place, {**GIVEN, **changes}, DEFAULTS)
    return Path(found.output).name, Path(found.start_from).name, found.resume


def test_the_folders_say_which_run_is_next_and_from_which_it_starts(tmp_path):
    place = tmp_path / "runs"
    assert next_of(place) == ("0001", "none", "none")
    assert next_of(place, start_from=str(tmp_path / "older")) == ("0001", "older", "none")
    begun(place, 1)
    assert next_of(place) == ("0001", "none", "last")
    (place / "0001" / "posterior.safetensors").touch()
    (place / "notes").mkdir()
    assert next_of(place) == ("0002", "0001", "none")
    second = begun(place, 2)
    assert next_of(place) == ("0002", "0001", "last")
    with only_writer(second), pytest.raises(RunError, match="is being written"):
        next_of(place)
    begun(place, 3, whole=True)
    assert next_of(place) == ("0004", "0003", "none")


@pytest.mark.parametrize("name, value", [("output", "elsewhere"), ("resume", "last")])
def test_what_the_service_chooses_is_refused(name, value, tmp_path):
    with pytest.raises(SettingError, match=f"{name}: '{value}'; expected no value"):
        next_of(tmp_path, **{name: value})
