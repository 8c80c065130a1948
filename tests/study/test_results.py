"""Every grid in findings/ can be read, and is that of the table beside it, whatever its version."""

from pathlib import Path

import pytest
from every_method import NIGHT

from fedbary.settings.config import bookkeeping
from fedbary.study.grid import read_experiment
from fedbary.study.table import find_mismatch, is_table, public, read_table

ROOT = Path(__file__).resolve().parents[2]
OWN = ("rules/grid.yaml", "rules/cifar10/grid.yaml", "hostile/adaptive/grid.yaml")
"""Grids of rules and attacks that are files of findings/, to be copied to the library first."""

EVERY = sorted((ROOT / "findings").glob("**/grid.yaml" if NIGHT else "*/grid.yaml"))
GRIDS = [grid for grid in EVERY if str(grid.relative_to(ROOT / "findings")) not in OWN]
"""By day each question's own, by night also those that chose its settings."""


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.parent.name)
def test_what_a_table_has_of_a_grid_is_not_asked_to_be_run_again(grid):
    experiment = read_experiment(grid, {}, {})
    assert experiment.runs and experiment.title and experiment.about
    if not is_table(grid.parent):
        return
    table = read_table(grid.parent)
    known = {str(name): rows for name, rows in table.groupby("run", sort=False)}
    assert known.keys() <= experiment.runs.keys()
    for name, rows in known.items():
        wanted = experiment.runs[name].model_dump(exclude=set(bookkeeping()))
        assert find_mismatch(rows, public(wanted)) is None
