"""MLflow: a run in the store of MLFLOW_TRACKING_URI; else in `mlruns` beside the run folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

EXPERIMENT = "fedbary"
"""What the experiment is called that the runs are in."""


class Tracker:
    """Writes settings as parameters, numbers as metrics, pictures and posterior as artefacts."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a local store without a database
        local = (folder.resolve().parent / "mlruns").as_uri()
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or local)
        found = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
        for name, value in settings.items():
            self._client.log_param(self._run, name, value)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write a round's numbers."""
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def end(self, pictures: Sequence[Path], posterior: Path) -> None:
        """Add pictures and posterior, and end the run."""
        for file in (*pictures, posterior):
            self._client.log_artifact(self._run, str(file))
        self._client.set_terminated(self._run)
