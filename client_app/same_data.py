"""A check whether a site's own data changed within a run; only an error leaves the site."""

from __future__ import annotations

import json
from functools import lru_cache
from logging import INFO
from pathlib import Path

import torch

from fedbary.data.digest import content_hash, row_hashes
from fedbary.data.paths import content_of
from fedbary.data.shard import Shard
from fedbary.errors import SettingError
from fedbary.runs.whole import write_whole
from strategies.internals import log

KEPT = "data.json"
"""The file in the site's state folder."""


def say_whether_compared(keeps_in: Path | None) -> None:
    """Log that a site without a folder for its state cannot compare."""
    if keeps_in is None:
        log(INFO, "no state-path: the site does not check whether its data change within a run")


def require_same_data(keeps_in: Path | None, shard: Shard, server_round: int) -> None:
    """Keep the hash of a site's data in round 1, and compare with it later.

    Raises
    ------
    SettingError
        If they changed; the message quotes none of them.
    """
    if keeps_in is None:
        return
    file, now = keeps_in / KEPT, _content(shard)
    try:
        kept = json.loads(content_of(file))["content"] if server_round > 1 else None
    except (OSError, ValueError, KeyError, TypeError):
        kept = None
    if kept is None:
        keeps_in.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"content": now}).encode())
    elif kept != now:
        allowed = "the data that the site began the run with; other data need a new run"
        raise SettingError("the site's data", "other data", allowed)


@lru_cache(maxsize=4)
def _content(shard: Shard) -> str:
    rows = torch.cat([row_hashes(shard.x), row_hashes(shard.x_held_out)])
    return content_hash(rows, torch.cat([shard.y, shard.y_held_out]))
