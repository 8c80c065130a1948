"""MLflow: a run in the store of MLFLOW_TRACKING_URI; else in `mlruns` beside the run folder.

A run that goes on does so in its MLflow run, whose id the run folder keeps.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbary.parts.parameters import Checked

LIBRARY = "mlflow"

RUN = "mlflow-run.txt"
"""The file with the id of the MLflow run."""


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of MLflow.

    Parameters
    ----------
    experiment
        Name of the run's experiment.
    """

    experiment: str = "fedbary"


class Tracker:
    """Writes settings as parameters, numbers as metrics, pictures and posterior as artefacts."""

    reopens = True

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a local store without a database
        local = (folder.resolve().parent / "mlruns").as_uri()
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or local)
        self._held: dict[str, set[int]] = {}
        if not self._goes_on(folder / RUN):
            name = settings.get("experiment", Parameters.experiment)
            found = self._client.get_experiment_by_name(name)
            place = found.experiment_id if found else self._client.create_experiment(name)
            self._run = self._client.create_run(place, run_name=folder.name).info.run_id
            (folder / RUN).write_text(self._run, encoding="utf-8")
        held = self._client.get_run(self._run).data.params
        for name, value in settings.items():
            if name not in held:  # MLflow lets none be changed
                self._client.log_param(self._run, name, value)

    def _goes_on(self, file: Path) -> bool:
        """Open the run again that a file names, if there is such a run in the store."""
        from mlflow.exceptions import MlflowException

        try:
            self._run = file.read_text(encoding="utf-8")
            self._client.update_run(self._run, status="RUNNING")
        except (FileNotFoundError, MlflowException):
            return False
        return True

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write a round's numbers, each once, also when a resumed run repeats rounds."""
        for name, value in values.items():
            if name not in self._held:
                history = self._client.get_metric_history(self._run, name)
                self._held[name] = {metric.step for metric in history}
            if step not in self._held[name]:
                self._client.log_metric(self._run, name, value, step=step)
                self._held[name].add(step)

    def end(self, pictures: Sequence[Path], posterior: Path) -> None:
        """Add pictures and posterior, and end the run."""
        for file in (*pictures, posterior):
            self._client.log_artifact(self._run, str(file))
        self._client.set_terminated(self._run)

    def stop(self, killed: bool) -> None:
        """End the run as killed, or as failed."""
        self._client.set_terminated(self._run, "KILLED" if killed else "FAILED")
