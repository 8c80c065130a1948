"""Tasks: the data, loss, scores and pictures of a run, a file for each task.

A task is a module of this package whose name has no leading underscore; the setting `task` names
it. It defines one class, a `Task`. A new one needs no other registration. `simulation.yaml` has its
settings' defaults under ``tasks``. A task of one's own needs no file here: ``package.module:Class``
names it, and it has `defaults`. A report of its runs shows the scores that `Task.curves` names.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

from fedbary.errors import SettingError
from fedbary.parts.imports import own_function
from fedbary.parts.registry import is_factory
from fedbary.settings.config import Settings
from fedbary.tasks._calibrated import edges, groups, held_out, hits_and_sizes, risks, row_names
from fedbary.tasks._classes import Classes
from fedbary.tasks._contrasts import INTERCEPT, NUMBER, Contrasts, are_levels
from fedbary.tasks._task import Task
from fedbary.tasks._values import (
    LEAST,
    SHOWN,
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
    "INTERCEPT",
    "LEAST",
    "NUMBER",
    "SHOWN",
    "Classes",
    "ClientMetrics",
    "Contrasts",
    "Dialogue",
    "Graph",
    "Outcome",
    "Question",
    "Scored",
    "Signature",
    "Task",
    "Tested",
    "are_levels",
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
    """Return the class that the file of a task defines, or that ``package.module:Class`` names.

    Raises
    ------
    SettingError
        If a class of one's own cannot be imported, is no `Task`, or lacks a method.
    """
    if is_factory(name):
        return _own_class(name)
    module = import_module(f"{__name__}.{name}")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    )
    return found


def _own_class(name: str) -> type[Task]:
    own = own_function("task", name, "Class")
    if not isinstance(own, type) or not issubclass(own, Task):
        raise SettingError("task", name, "a class below fedbary.tasks.Task")
    if missing := sorted(getattr(own, "__abstractmethods__", ())):
        raise SettingError("task", name, f"a task that defines {', '.join(missing)}")
    return own


@lru_cache(maxsize=4)
def task_of(settings: Settings) -> Task:
    """Return the task of a run, made once per process."""
    return task_class(settings.task)(settings)
