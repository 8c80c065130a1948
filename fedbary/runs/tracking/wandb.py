"""Weights & Biases: a run of a project; WANDB_MODE=offline keeps it in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbary.parts.parameters import Checked

if TYPE_CHECKING:
    from fedbary.runs.tracking import Export

LIBRARY = "wandb"


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of Weights & Biases.

    Parameters
    ----------
    project
        Name of the run's project.
    """

    project: str = "fedbary"


class Tracker:
    """Logs settings as the config, numbers, pictures as images, the posterior as an artefact."""

    reopens = False

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        project = settings.get("project", Parameters.project)
        self._run = wandb.init(
            project=project, name=folder.name, dir=str(folder), config={**settings}
        )

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log a round's numbers."""
        self._run.log({**values}, step=step)

    def stop(self, killed: bool) -> None:
        """End the run as failed."""
        self._run.finish(exit_code=1)

    def end(self, pictures: Sequence[Path], posterior: Path, export: Export) -> None:
        """Log pictures and posterior, and end the run."""
        import wandb

        self._run.log({picture.stem: wandb.Image(str(picture)) for picture in pictures})
        artefact = wandb.Artifact(f"posterior-{self._run.id}", type="posterior")
        artefact.add_file(str(posterior), policy="immutable")  # else W&B keeps a copy of it at home
        self._run.log_artifact(artefact)
        self._run.finish()
