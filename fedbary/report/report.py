"""The report of an experiment, from its table alone."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedbary.errors import SettingError
from fedbary.report import sections
from fedbary.report.compared import read_one
from fedbary.report.document import Document
from fedbary.report.results import Results
from fedbary.runs.location import METRICS, POSTERIOR, SETTINGS
from fedbary.runs.own_code import require_trusted
from fedbary.settings.config import DEFAULTS, read_yaml
from fedbary.study.files import is_table
from fedbary.study.table import read_about, read_table, with_methods


def write_report(results: str | Path, own_code: bool = False) -> Path:
    """Write `report.html`, `report.md` and `figures/` from a results folder's table, or a run's.

    Each task has sections of its own. `own_code` is as for `fedbary.load`.

    Returns
    -------
    Path
        The HTML page.

    Raises
    ------
    SettingError
        If there is no table of this version, or no run in it.
    """
    results = Path(results)
    of_run = any((results / name).exists() for name in (SETTINGS, METRICS, POSTERIOR))
    single = of_run and not is_table(results)
    table = with_methods(read_one(results) if single else read_table(results))
    if table.empty:
        raise SettingError("results", str(results), "a folder whose table holds a finished run")
    about = read_about(results)
    document = Document(results, about.get("title") or results.resolve().name)
    if text := about.get("about"):
        document.text("{about}", about=text)
    tasks = [(str(task), rows) for task, rows in table.groupby(_task(table), sort=False)]
    for task, rows in tasks:
        require_trusted({"task": task}, results, own_code)
        told = sections.of(task)
        if len(tasks) > 1:
            document.heading(f"Task: {task}", 1)
            rows = rows.dropna(axis="columns", how="all")
        shown = Results.of(rows, results)
        for column in told.REQUIRED:
            if column not in shown.table:
                allowed = f"a table with a column {column}, as this version of fedbary writes it"
                raise SettingError("results", str(results), allowed)
        told.write(shown, document)
    document.write()
    return results / "report.html"


def _task(table: pd.DataFrame) -> pd.Series:
    """Return each row's task; runs of early versions, which had one, have that of the defaults."""
    first = read_yaml(DEFAULTS)["task"]
    if "task" not in table:
        return pd.Series(first, index=table.index)
    return table["task"].astype(object).fillna(first)
