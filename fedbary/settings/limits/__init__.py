"""Settings that a task takes, a file for each; PyTorch is not imported.

The file of a task in `fedbary.tasks` bears the same name here. It defines

``DATASETS``
    the names of its data sets;
``FILES``
    endings of the paths of files that it reads; "" for any path;
``Parameters``
    the settings that the task owns, a frozen dataclass;
``TAKES``
    settings that only some tasks take, and this one does;
``BEST_BY``
    the scores that may choose the best round, each with the better direction, ``min`` or ``max``;
``limits(settings)``
    yields (setting, whether it fits the others, what is allowed).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from fedbary.parts.parameters import told
from fedbary.parts.registry import modules

if TYPE_CHECKING:
    from fedbary.settings.config import Settings

TASKS = modules("tasks")
"""Names of the tasks."""


def of(task: str) -> ModuleType:
    """Return the module of a task."""
    return import_module(f"{__name__}.{task}")


def data_task(setting: str, task: str) -> str:
    """Return the task whose data sets a setting may name, for a run's task."""
    own = setting != "ood_dataset" or task in ("tables", "text")
    return task if own else "classification"


def conflicts(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings that do not fit the others, each with what is allowed."""
    task = of(settings.task)
    told(task.Parameters, settings)
    return ((setting, allowed) for setting, fits, allowed in task.limits(settings) if not fits)
