"""A look at the sites' tables, without a model: a ServerApp of its own, and what holds the look.

`fedbary app DEST --look` writes the Flower app that runs it.
"""

from __future__ import annotations

from logging import INFO
from pathlib import Path
from typing import cast

from flwr.app import Context, MessageType
from flwr.serverapp import Grid, ServerApp

from fedbary.data.layout import Layout
from fedbary.errors import SettingError
from fedbary.runs.location import claimed_folder
from fedbary.server_app.experiment import begun
from fedbary.server_app.grids import Recorded, guarded
from fedbary.server_app.roster.asker import Asker
from fedbary.server_app.roster.roster import Roster
from fedbary.settings.config import Settings, resolve
from fedbary.settings.run_config import given_in
from fedbary.strategies.internals import is_simulated, log
from fedbary.tasks import task_of
from fedbary.tasks._look.dialogue import Look, look
from fedbary.tasks._rows import Rows
from fedbary.trained.look_page import lines, write

KIND = f"{MessageType.QUERY}.look"
"""Type of a look's messages."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Hold a look with the settings of a run config, and write it to the folder `output`."""
    with begun(grid):
        settings = resolve({"task": "tables", **given_in(context.run_config)})
        simulated = is_simulated(grid)
        with claimed_folder(settings, Path.cwd()) as folder:
            record = Recorded(grid if simulated else guarded(grid), folder)
            found = hold(cast(Grid, record), settings, simulated)
            for line in lines(found):
                log(INFO, "%s", line)
            write(found, folder, force=True)
            record.begin()
            record.note("end")
        log(INFO, "Look: %s", folder)


def hold(grid: Grid, settings: Settings, simulated: bool) -> Look:
    """Ask a federation's sites about their tables; return what they have told.

    Raises
    ------
    SettingError
        If the task has no tables.
    RunError
        If too few sites answer.
    """
    if not isinstance(task := task_of(settings), Rows):
        raise SettingError("task", settings.task, "tables or regression for a look")
    roster = Roster(grid, settings, Layout((), ()), simulated=simulated, agreed={}, kind=KIND)
    roster.gather()
    nodes = [member.node_id for member in roster.members]
    asked = look(ids=task.choice.id != "")
    return Asker(grid, roster, settings.round_timeout, KIND).hold(asked, nodes, {})
