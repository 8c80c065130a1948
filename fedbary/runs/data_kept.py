"""What a run keeps of its data: a digest in its folder, and at a site a hash of the site's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from fedbary.data.deal import Shard
from fedbary.data.digest import Digest, content_hash, row_hashes
from fedbary.data.forms import content_of
from fedbary.errors import SettingError
from fedbary.runs.whole import read_tensors, write_tensors, write_whole

DATA = "data.json"
"""The file of the words, for people; at a site the hash alone."""

ROWS = "data-rows.safetensors"
"""File of the hashes, which show whether an input was trained on."""


def write_digest(folder: Path, digest: Digest) -> None:
    """Write a digest to a run's folder."""
    words = json.dumps(digest.said).encode() + b"\n"
    tensors = {"rows": digest.rows, "trained": digest.trained}
    if digest.groups is not None:
        tensors["groups"] = digest.groups
    write_tensors(folder / ROWS, tensors, {"words": hashlib.sha256(words).hexdigest()})
    write_whole(folder / DATA, words)


def read_digest(folder: Path) -> Digest | None:
    """Return a run's digest; None if one of the files is missing.

    Raises
    ------
    SettingError
        If one is damaged.
    """
    files = folder / DATA, folder / ROWS
    if not all(file.exists() for file in files):
        return None
    try:
        words, (tensors, marks) = content_of(files[0]), read_tensors(files[1], ("words",))
        if marks.get("words") != hashlib.sha256(words).hexdigest():
            raise ValueError("its content is not what was written")
        return Digest(json.loads(words), tensors["rows"], tensors["trained"], tensors.get("groups"))
    except (OSError, ValueError, LookupError) as error:
        raise SettingError(f"{files[0]}, {ROWS}", error, "the file as the run wrote it") from None


def require_same_site(
    folder: Path, shard: Shard, begins: bool, facts: Mapping[str, Tensor] = MappingProxyType({})
) -> None:
    """Keep the hash of a site's data as it first answers in a run, and compare with it later.

    Parameters
    ----------
    folder, shard
        The folder of what the site keeps, and its data.
    begins
        True in round 1, where the data may be others than before.
    facts
        The run's, which a resumed run keeps: with others it is another run. A site that answers
        first in a later round so may have new rows.

    Raises
    ------
    SettingError
        If the data changed; the message quotes none of them.
    """
    file, now = folder / DATA, {"content": _content(shard), "run": _mark(facts)}
    try:
        kept = json.loads(content_of(file))
        same_run = not begins and kept["run"] == now["run"]
        changed = same_run and kept["content"] != now["content"]
    except (OSError, ValueError, KeyError, TypeError):
        same_run = changed = False
    if changed:
        allowed = "the data that the site began the run with; other data need a new run"
        raise SettingError("the site's data", "other data", allowed)
    if not same_run:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(now).encode())


def _mark(facts: Mapping[str, Tensor]) -> str:
    words = {name: fact.tolist() for name, fact in facts.items()}
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=4)
def _content(shard: Shard) -> str:
    rows = torch.cat([row_hashes(shard.x), row_hashes(shard.x_held_out)])
    return content_hash(rows, torch.cat([shard.y, shard.y_held_out]))
