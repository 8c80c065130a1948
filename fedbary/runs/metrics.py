"""The lines of a run's metrics.jsonl, one a round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedbary.errors import SettingError
from fedbary.runs.location import METRICS


def metrics_lines(folder: Path) -> list[bytes]:
    """Return the lines as they stand, of which the last may be cut off; of no file none."""
    try:
        return (folder / METRICS).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl."""
    try:
        return [json.loads(line) for line in metrics_lines(folder)]
    except ValueError as error:
        raise SettingError(str(folder / METRICS), error, "what the run wrote") from None
