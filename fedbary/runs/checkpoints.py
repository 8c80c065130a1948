"""Checkpoints: what a run needs to go on after a round, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedbary.aggregation.sums import select_prefix
from fedbary.errors import SettingError
from fedbary.runs.whole import read_tensors, write_tensors
from fedbary.settings.config import bookkeeping

KEPT = 2
"""Checkpoints that stay in a folder: the last, and the one before should the last be damaged."""

MARKS = ("round", "settings", "metrics")
"""Entries of a checkpoint's metadata that tie it to its run."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after a round; every random draw of it comes from (seed, client, round).

    Parameters
    ----------
    round : int
        Whole rounds.
    settings : str
        The `fingerprint` of the run's settings.
    metrics : str
        The SHA-256 of the lines of metrics.jsonl up to this round.
    arrays : Mapping[str, Tensor]
        The global model's tensors.
    strategy : Mapping[str, Tensor]
        The strategy's own state.
    """

    round: int
    settings: str
    metrics: str
    arrays: Mapping[str, Tensor]
    strategy: Mapping[str, Tensor]


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the settings that decide a run's results."""
    deciding = {name: value for name, value in settings.items() if name not in bookkeeping()}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def save_checkpoint(folder: Path, checkpoint: Checkpoint, kept: Collection[int] = ()) -> None:
    """Write ``checkpoint-<round>.safetensors`` at once; remove all but the last two and `kept`.

    If the process is killed, the folder holds the old checkpoints, with or without this one.
    """
    tensors = {f"arrays.{name}": tensor for name, tensor in checkpoint.arrays.items()}
    tensors |= {f"strategy.{name}": tensor for name, tensor in checkpoint.strategy.items()}
    marks = {key: str(getattr(checkpoint, key)) for key in MARKS}
    file = _file(folder, checkpoint.round)
    write_tensors(file, tensors, marks)
    for old in _files(folder)[:-KEPT]:
        if _round(old) not in kept:
            old.unlink()


def load_checkpoint(folder: Path, which: str | int) -> Checkpoint:
    """Read the ``"last"`` checkpoint of a run's folder, the ``"previous"`` one, or a round's.

    Raises
    ------
    SettingError
        If there is none, or it is damaged; the message names what can be used instead.
    """
    if isinstance(which, int):
        rounds = [_round(file) for file in _files(folder)]
        if which not in rounds:
            kept = ", ".join(map(str, rounds)) or "none"
            raise SettingError("resume", which, f"a round whose checkpoint is kept: {kept}")
        return load_round(folder, which)
    files = _last(folder)
    position = {"last": 1, "previous": 2}[which]
    if len(files) < position:
        held = f"a run that holds a {which} checkpoint; this one holds {len(files)}"
        raise SettingError("run", str(folder), held)
    file = files[-position]
    others = [f"resume=previous, round {_round(other)}" for other in files[:-1]]
    return _read(file, others if which == "last" else [])


def load_round(folder: Path, number: int) -> Checkpoint:
    """Read the checkpoint of a round; a SettingError if it is missing or damaged."""
    return _read(_file(folder, number), [])


def _read(file: Path, others: list[str]) -> Checkpoint:
    """Read a checkpoint; an error names the `others` that may be used instead."""
    try:
        tensors, marks = read_tensors(file, MARKS)
        if marks.get("round") != str(_round(file)):
            raise ValueError("its content is not what was written")
    except (OSError, ValueError) as error:
        allowed = " or ".join(["an undamaged checkpoint", *others])
        raise SettingError(f"checkpoint {file}", error, allowed) from None
    parts = select_prefix("arrays.", tensors), select_prefix("strategy.", tensors)
    return Checkpoint(int(marks["round"]), marks["settings"], marks["metrics"], *parts)


def has_checkpoint(folder: Path) -> bool:
    """Return whether the folder holds a checkpoint, sound or not."""
    return bool(_files(folder))


def drop_checkpoints_after(folder: Path, completed: int) -> None:
    """Remove the checkpoints of later rounds, which a run that goes on writes anew."""
    for file in _files(folder):
        if _round(file) > completed:
            file.unlink()


def _file(folder: Path, number: int) -> Path:
    return folder / f"checkpoint-{number:04d}.safetensors"


def _last(folder: Path) -> list[Path]:
    """Return the last checkpoint, preceded by that of the round before if there is one."""
    files = _files(folder)
    return [file for file in files[-KEPT:] if _round(file) > _round(files[-1]) - KEPT]


def _files(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the oldest first."""
    found = folder.glob("checkpoint-*.safetensors")
    return sorted((file for file in found if _round(file) >= 0), key=_round)


def _round(file: Path) -> int:
    match = re.fullmatch(r"checkpoint-(\d+)\.safetensors", file.name)
    return int(match[1]) if match else -1
