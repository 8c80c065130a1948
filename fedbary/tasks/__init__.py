"""Tasks: the data, loss, scores and pictures of a run, a file for each task.

A task is a module of this package whose name has no leading underscore; the setting `task` names
it. It defines one class, a `Task`. A new one needs no other registration. `simulation.yaml` has its
settings' defaults under ``tasks``. A report of its runs shows the scores that `Task.curves` names.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

from fedbary.settings.config import Settings
from fedbary.tasks._calibrated import edges, groups, held_out, hits_and_sizes, risks, row_names
from fedbary.tasks._task import Task
from fedbary.tasks.shared.values import (
    ClientMetrics,
    Dialogue,
    Graph,
    Outcome,
    Question,
    Scored,
    Signature,
    Tested,
)

__all__ = [
    "ClientMetrics",
    "Dialogue",
    "Graph",
    "Outcome",
    "Question",
    "Scored",
    "Signature",
    "Task",
    "Tested",
    "edges",
    "groups",
    "held_out",
    "hits_and_sizes",
    "risks",
    "row_names",
    "task_class",
    "task_of",
]


def task_class(name: str) -> type[Task]:
    """Return the class that the file of a task defines."""
    module = import_module(f"{__name__}.{name}")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    )
    return found


@lru_cache(maxsize=4)
def task_of(settings: Settings) -> Task:
    """Return the task of a run, made once per process."""
    return task_class(settings.task)(settings)
