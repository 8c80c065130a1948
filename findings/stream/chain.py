"""A chain of federations without Flower: each starts from the one before, as with `start_from`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedbary.inference import PosteriorParameters
from fedbary.parts.parameters import told
from fedbary.scores.metrics import evaluate
from fedbary.settings.combinations import has_earlier_prior
from fedbary.settings.config import resolve
from fedbary.trained.started_from import EarlierRun
from findings.federations import Federation, rounds_of
from findings.stream.sides import Side
from findings.stream.streams import Arrays


def chain(
    side: Side,
    settings: Mapping[str, Any],
    tasks: Sequence[Arrays],
    seed: int,
    scored: str,
    last_alone: bool = False,
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each task's number and its scores, on the part `scored` of every task so far.

    With `last_alone` a side that trains anew does so after the last task alone.
    """
    before: Federation | None = None
    last = len(tasks) - 1
    with TemporaryDirectory() as folder:
        for task in range(last * (side.anew and last_alone), len(tasks)):
            file, seen = Path(folder) / f"{task}.npz", tasks[: task + 1]
            known = tasks if side.knows_classes else seen
            written(file, seen if side.anew else seen[-1:], seen, scored, known)
            own = {**side.own(settings, task), "dataset": str(file), "seed": seed}
            federation = Federation(resolve(own))
            if before is not None and not side.anew:
                go_on(federation, before)
            for _ in rounds_of([federation]):
                pass
            before = federation
            yield task, scores(federation, [len(each[f"y_{scored}"]) for each in seen])


def go_on(federation: Federation, before: Federation) -> None:
    """Let a federation begin with what an earlier one has left."""
    by = before.method.predictive(before.model, before.state)
    run = EarlierRun(
        Path(), before.round, "", before.model, before.state, by.posterior, {},
        before.settings.model_dump(), None,
    )  # fmt: skip
    old, new = (each.task.signature().classes for each in (before, federation))
    inherited = run.inherited(old, new, federation.method)
    wanted = federation.model
    federation.model, federation.state = federation.method.inherit(
        run.model(wanted, inherited), inherited
    )
    if has_earlier_prior(federation.settings):
        std = told(PosteriorParameters, federation.settings).prior_std
        federation.prior = run.prior(wanted, inherited, std)


def scores(federation: Federation, counts: Sequence[int]) -> dict[str, float]:
    """Return accuracy on the last task and, in the mean, on those before; NLL on all of them."""
    x, y = federation.task.scored_by_clients({})
    assert len(y) == sum(counts)
    probs = federation.predicted(x).probs
    ends = np.cumsum(counts)
    right = [
        float((probs.argmax(1) == y)[e - n : e].double().mean())
        for e, n in zip(ends, counts, strict=True)
    ]
    old = float(np.mean(right[:-1])) if right[:-1] else float("nan")
    return {"new": right[-1], "old": old, "nll": evaluate(probs, y)["nll"]}


def written(
    file: Path,
    train: Sequence[Arrays],
    tested: Sequence[Arrays],
    scored: str,
    known: Sequence[Arrays],
) -> None:
    """Write a task's training images, those that are scored, and the names of known classes."""
    train_of = {f"{n}_train": np.concatenate([each[f"{n}_train"] for each in train]) for n in "xy"}
    test_of = {
        f"{n}_test": np.concatenate([each[f"{n}_{scored}"] for each in tested]) for n in "xy"
    }
    last = max(int(each[f"y_{scored}"].max()) for each in known)
    np.savez(file, **train_of, **test_of, classes=[str(label) for label in range(last + 1)])
