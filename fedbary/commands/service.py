"""The command for a federation that stays: stay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def stay(
    superlink: Annotated[str, typer.Argument(metavar="SUPERLINK")],
    runs: Annotated[Path, typer.Argument(metavar="RUNS")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[SETTINGS.yaml] [KEY=VALUE ...]")
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds between two looks.", show_default="look once"),
    ] = None,
) -> None:
    """Start the next run of a federation of real servers once there are enough new examples.

    SUPERLINK is its name in Flower's configuration. RUNS is the folder of the runs 0001, 0002, …
    Each starts from the newest one that has ended; one that was cut off goes on. SETTINGS.yaml is a
    file of settings; the default is simulation.yaml. KEY=VALUE sets one of them: `new_examples`
    says how many examples are enough. The command may be stopped at any moment.

    Example: `fedbary stay ours runs next.yaml new_examples=500 --every 600`.
    """
    from fedbary.launching.staying import stay as service
    from fedbary.settings.config import DEFAULTS, parse_overrides

    words = arguments or []
    named = words and "=" not in words[0]
    file, words = (Path(words[0]), words[1:]) if named else (DEFAULTS, words)
    service(superlink, runs, parse_overrides(words), file, every)
