"""A look in one process, on files of sites or on a data set's parts: `fedbary look`."""

from __future__ import annotations

import secrets
import sys
from logging import WARNING
from pathlib import Path
from typing import Any

import yaml

from fedbary.client_app import app
from fedbary.data.ids import SHORTEST_KEY
from fedbary.errors import last_words
from fedbary.figures import draw_without_screen
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.look import hold
from fedbary.settings.config import validated
from fedbary.strategies.internals import FLOWER_LOGGER
from fedbary.trained.look_page import lines, write


def main() -> None:
    """Hold the look that a file describes, print it and write it; an error ends the process."""
    draw_without_screen()
    FLOWER_LOGGER.setLevel(WARNING)
    given: dict[str, Any] = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        settings = validated(given["settings"])
        key = {"id-key": secrets.token_hex(SHORTEST_KEY)}  # of this process alone
        nodes = [{**node, **key} for node in given["nodes"]] or settings.clients
        found = hold(InlineGrid(app, nodes, settings.model_dump()), settings, True)
        write(found, Path(settings.output), given["force"])
    except Exception as error:
        if (said := last_words(error)) is None:
            raise
        sys.exit(f"fedbary: {said}")
    print("\n".join(lines(found)))


if __name__ == "__main__":
    main()
