"""A chain of runs: each starts from the one before."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import fedbary
from fedbary.runs.location import read_rounds
from fedbary.settings.config import resolve
from findings.stream.sides import Side
from findings.stream.streams import Arrays
from server_app.engine.inline import run_inline


def chain(
    side: Side,
    settings: Mapping[str, Any],
    tasks: Sequence[Arrays],
    seed: int,
    scored: str,
    last_alone: bool = False,
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each task's number and its scores, on the part `scored` of every task so far.

    They are the accuracy on the last task and, in the mean, on those before, and the NLL on all.
    With `last_alone` a side that trains anew does so after the last task alone.
    """
    last = len(tasks) - 1
    with TemporaryDirectory() as scratch:
        for task in range(last * (side.anew and last_alone), len(tasks)):
            file, folder = Path(scratch, f"{task}.npz"), Path(scratch, f"{task}")
            seen = tasks[: task + 1]
            known = tasks if side.knows_classes else seen
            written(file, seen if side.anew else seen[-1:], seen, scored, known)
            own = {**side.own(settings, task), "dataset": str(file), "seed": seed}
            if "start_from" in own:
                own["start_from"] = str(Path(scratch, f"{task - 1}"))
            run_inline(resolve({**own, "engine": "inline"}), folder)
            trained = fedbary.load(folder)
            right = []
            for each in seen:
                probs = trained.predict(torch.as_tensor(each[f"x_{scored}"])).probs.cpu()
                right.append(float((probs.argmax(1).numpy() == each[f"y_{scored}"]).mean()))
            old = float(np.mean(right[:-1])) if right[:-1] else float("nan")
            yield task, {"new": right[-1], "old": old, "nll": read_rounds(folder)[-1]["nll"]}


def written(
    file: Path,
    train: Sequence[Arrays],
    tested: Sequence[Arrays],
    scored: str,
    known: Sequence[Arrays],
) -> None:
    """Write a task's training images, those that are scored, and the names of known classes."""
    parts = ("train", "train", train), ("test", scored, tested)
    arrays = {f"{n}_{part}": np.concatenate([each[f"{n}_{of}"] for each in several])
              for part, of, several in parts for n in "xy"}  # fmt: skip
    last = max(int(each[f"y_{scored}"].max()) for each in known)
    np.savez(file, **arrays, classes=[str(label) for label in range(last + 1)])
