"""MLflow: a run in the store of MLFLOW_TRACKING_URI; else in `mlruns` beside the run folder.

A run that goes on does so in its MLflow run, whose id the run folder keeps. At its end the artefact
`model` is a model of MLflow's kind, which `mlflow.pyfunc` loads without fedbary.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbary.parts.parameters import Checked

if TYPE_CHECKING:
    from fedbary.runs.tracking import Export

LIBRARY = "mlflow"

RUN = "mlflow-run.txt"
"""The file with the id of the MLflow run."""


READER = "fedbary_model.py"
"""The file of an export that reads its other files; a model that predicts nothing has none."""


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of MLflow.

    Parameters
    ----------
    experiment
        Name of the run's experiment.
    log_model
        true: the run's model is logged as a model of MLflow's, which takes seconds and the extra
        onnx. false: settings, numbers, pictures and posterior alone, for sweeps of many runs.
    """

    experiment: str = "fedbary"
    log_model: bool = True


class Tracker:
    """Writes settings as parameters, numbers as metrics, pictures, posterior and model."""

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
        self._log_model = settings.get("log_model", Parameters.log_model)
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

    def end(self, pictures: Sequence[Path], posterior: Path, export: Export) -> None:
        """Add pictures, posterior and model, and end the run."""
        try:
            for file in (*pictures, posterior):
                self._client.log_artifact(self._run, str(file))
            if self._log_model:
                with tempfile.TemporaryDirectory() as scratch:
                    model = _model(Path(scratch), export)
                    self._client.log_artifacts(self._run, str(model), "model")
        finally:
            self._client.set_terminated(self._run)

    def stop(self, killed: bool) -> None:
        """End the run as killed, or as failed."""
        self._client.set_terminated(self._run, "KILLED" if killed else "FAILED")


def _model(scratch: Path, export: Export) -> Path:
    """Return the folder of a model as MLflow has it; of an export that predicts nothing, itself."""
    import mlflow.pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema, TensorSpec

    exported = scratch / "export"
    exported.mkdir()
    export(exported)
    if not (exported / READER).exists():
        return exported
    described = json.loads((exported / "schema.json").read_text(encoding="utf-8"))
    if "columns" in described:
        import pandas

        columns = [column for column in described["columns"] if column["needed"]]
        kinds = [DataType.string if "levels" in each else DataType.double for each in columns]
        pairs = zip(kinds, columns, strict=True)
        inputs = Schema([ColSpec(kind, column["name"]) for kind, column in pairs])
        first = {c["name"]: c["levels"][0] if "levels" in c else c["mean"] for c in columns}
        example: Any = pandas.DataFrame([first])
    else:
        wanted = described["input"]
        shape, dtype = [one or -1 for one in wanted["shape"][1:]], np.dtype(wanted["dtype"])
        inputs = Schema([TensorSpec(dtype, (-1, *shape))])
        example = np.zeros((1, *(max(1, side) for side in shape)), dtype)
    mlflow.pyfunc.save_model(
        str(scratch / "model"),
        loader_module=Path(READER).stem,
        data_path=str(exported),
        code_paths=[str(exported / READER)],
        signature=ModelSignature(inputs),
        input_example=example,
        pip_requirements=[_pinned(name) for name in ("numpy", "onnxruntime", "pandas")],
    )
    return scratch / "model"


def _pinned(package: str) -> str:
    try:
        return f"{package}=={version(package)}"
    except PackageNotFoundError:
        return package
