"""A tracker owns settings, which decide where a run is told of and not what comes out of it."""

import pytest

from fedbary.errors import SettingError
from fedbary.runs.checkpoints import fingerprint
from fedbary.settings.config import bookkeeping, resolve
from fedbary.settings.uses import require_used


def test_a_tracker_brings_its_settings_and_without_it_they_are_refused():
    assert resolve({"tracker": "mlflow"}).experiment == "fedbary"
    assert resolve({"tracker": "wandb", "project": "hearts"}).project == "hearts"
    with pytest.raises(SettingError, match="experiment: 'x'.* tracker=none .* tracker=mlflow do"):
        require_used({"experiment": "x"}, resolve({}))


def test_a_tracker_s_settings_are_no_other_run():
    assert {"experiment", "project", "tracker"} <= bookkeeping()
    marks = [fingerprint(resolve({"tracker": t}).model_dump()) for t in ("none", "mlflow", "wandb")]
    assert len(set(marks)) == 1
