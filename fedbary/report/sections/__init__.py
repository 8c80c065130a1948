"""The sections of a report, a file for each task that has sections of its own.

The file of a task in `fedbary.tasks` bears the same name here, if there is one; without one a
report shows the scores that the task's `curves` name. A file defines

``REQUIRED``
    the columns of the table that the sections need;
``write(results, document)``
    adds the sections.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from fedbary.parts.registry import modules
from fedbary.report.document import Document
from fedbary.report.results import Results
from fedbary.report.sections._scores import Scores
from fedbary.tasks import task_class


class Sections(Protocol):
    """Content of a file of this package."""

    REQUIRED: tuple[str, ...]

    def write(self, results: Results, document: Document) -> None:
        """Add the sections to a document."""
        ...


def of(task: str) -> Sections:
    """Return the sections of a task."""
    if task in modules("report/sections"):
        return cast(Sections, import_module(f"{__name__}.{task}"))
    return Scores(task_class(task))
