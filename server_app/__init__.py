"""The Flower ServerApp.

The run, and PyTorch with it, is imported when the app starts: Flower loads it before it starts Ray,
and each takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

if TYPE_CHECKING:
    from fedbary.settings.config import Settings

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that simulation.yaml and the run config describe."""
    import_module("fedbary.server_app.experiment").main(grid, context)


def run(grid: Grid, settings: Settings, folder: Path) -> None:
    """Train a federation and write its results to a new folder."""
    import_module("fedbary.server_app.experiment").run(grid, settings, folder)
