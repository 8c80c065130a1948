"""The two apps on Flower's simulation engine: `python -m server_app.engine.on_ray`.

A line of standard input names the settings file. Before it comes, Ray starts while PyTorch is
imported. The run is that of `flwr run`, without the processes of a SuperLink.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from logging import ERROR, LogRecord
from pathlib import Path
from typing import Any

import ray
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedbary.client_app import app
from fedbary.errors import last_words
from fedbary.server_app import run
from fedbary.settings.model import Settings

HEAVY = "fedbary.server_app.experiment"
"""The module whose import takes seconds: PyTorch's."""

RAY_OPTIONS: dict[str, Any] = {
    "include_dashboard": False,
    "logging_level": "WARNING",
    "log_to_driver": True,
}
"""The options with which Flower starts Ray."""

DIRECT_BYTES = 8 * 2**20
"""Size of a message up to which it goes to a worker without Ray's store of objects.

Ray's own limit is 100 KB. The way through the store costs some 10 ms of CPU for each message.
"""

WORKER_OPTIONS = {"max_restarts": -1, "max_task_retries": 1}
"""A worker that dies is started anew and answers its message again.

Flower would give every later message to the dead worker.
"""


class Configured(ClientApp):
    """The ClientApp with a run config, which Flower's Python interface does not pass on.

    Parameters
    ----------
    run_config
        The run config that the app sees in each context.
    """

    def __init__(self, run_config: dict[str, str | int | float | bool]) -> None:
        super().__init__()
        self.run_config = run_config

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message; the context leaves with the run config that it came with."""
        before, context.run_config = context.run_config, {**self.run_config}
        try:
            return app(message, context)
        finally:
            context.run_config = before


def run_simulated(settings: Settings, folder: Path) -> None:
    """Run the server app and the client app on Ray; results go to `folder`, and this process ends.

    Flower's own end takes seconds, in which Ray closes down; the command ends Ray's processes.

    Raises
    ------
    SettingError, RunError, OSError
        What ends the run; it is logged already.
    """
    from fedbary.server_app.roster.roster import end_simulation
    from fedbary.settings.device import gpu_share
    from fedbary.strategies.internals import FLOWER_LOGGER, log

    settings = settings.model_copy(update={"output": str(folder)})
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            run(grid, settings, folder)
            sys.stdout.flush()
            os._exit(0)
        except Exception as error:
            if said := last_words(error):
                log(ERROR, "fedbary: %s", said)
                end_simulation()
            raise

    FLOWER_LOGGER.addFilter(_is_news)
    resources = {"num_cpus": settings.cpus_per_client, "num_gpus": gpu_share(settings)}
    backend: Any = {"client_resources": resources | WORKER_OPTIONS}
    client = Configured(settings.model_dump())
    run_simulation(server, client, settings.clients, backend_config=backend)


def _is_news(record: LogRecord) -> bool:
    """Return whether a line is not Flower's advice to use `flwr run` instead of this interface."""
    return "`run_simulation` function is deprecated" not in record.getMessage()


def main() -> None:
    """Run the settings file that standard input names; without one the command has given up."""
    imports = threading.Thread(target=import_module, args=[HEAVY])
    imports.start()
    if os.environ.get("RAY_ADDRESS") == "local":
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        ray.init(**RAY_OPTIONS, _system_config={"max_direct_call_object_size": DIRECT_BYTES})
    imports.join()
    if file := sys.stdin.readline().rstrip("\n"):
        from fedbary.server_app.engine.inline import run_settings_file

        run_settings_file(Path(file), run_simulated)


if __name__ == "__main__":
    main()
