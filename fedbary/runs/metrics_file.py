"""The lines of a run's metrics.jsonl, one a round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedbary.data.paths import content_of
from fedbary.errors import SettingError
from fedbary.runs.location import METRICS
from fedbary.runs.schema import ROUND


def metrics_lines(folder: Path) -> list[bytes]:
    """Return the lines, the last of which may be cut off; none without a file."""
    try:
        return content_of(folder / METRICS).splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SettingError(str(folder / METRICS), error, "the file as the run wrote it") from None


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl."""
    try:
        rounds = [json.loads(line) for line in metrics_lines(folder)]
        if not all(
            isinstance(line, dict) and line.get(ROUND) == k for k, line in enumerate(rounds)
        ):
            raise ValueError("its lines are not those of the rounds 0, 1, …")
    except (ValueError, RecursionError) as error:
        raise SettingError(str(folder / METRICS), error, "the file as the run wrote it") from None
    return rounds
