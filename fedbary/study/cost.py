"""Estimates of a run's time on this machine, from similar finished runs, else from a few steps."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from fedbary.errors import SettingError
from fedbary.settings.config import Settings

STEPS = 12
START_SECONDS = {"inline": 1.0, "ray": 5.0}
"""Seconds for reading the data, drawing pictures and starting what the engine needs."""

ROUND_OVERHEAD = 1.15
"""Factor of a round's time over its clients' training: aggregation and evaluation."""


class RuntimeEstimator:
    """Estimates of runs' seconds.

    Parameters
    ----------
    done
        Rows of runs that were made, one table each.
    """

    def __init__(self, done: Sequence[pd.DataFrame]) -> None:
        self._known: dict[tuple[object, ...], float] = {}
        for rows in done:
            first = rows.iloc[0].dropna()
            first = pd.Series({**first, "rounds": rows["round"].max()})
            self._known[_like(first)] = float(rows["seconds"].sum() / _passes(first))

    def seconds(self, settings: Settings) -> float | None:
        """Return a run's seconds; None if a few steps cannot be tried, without data for example."""
        row = pd.Series(settings.model_dump())
        key = _like(row)
        if key not in self._known:
            try:
                self._known[key] = _seconds_of_an_epoch(settings)
            except SettingError:
                return None
        return START_SECONDS[settings.engine] + self._known[key] * _passes(row)


def _passes(row: pd.Series) -> float:
    """Return the number of a run's passes over all the training data."""
    used = row["train_fraction"] * (1 - row["server_fraction"])
    own = row.dropna()
    return float(own.get("local_epochs", 1) * row["rounds"] * own.get("participation", 1) * used)


def _like(row: pd.Series) -> tuple[object, ...]:
    keys = ("model", "method", "bayesian_layers", "batch_size", "inference", "engine")
    return Path(row["dataset"]).name, *(row.get(key) for key in keys)


def _seconds_of_an_epoch(settings: Settings) -> float:
    """Train a few steps as a client does, and scale to one pass over all the training data."""
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.cpus_per_client)
    try:
        return _seconds_by_steps(settings.model_copy(update={"download": False}))
    finally:
        torch.set_num_threads(threads)


def _seconds_by_steps(settings: Settings) -> float:
    from fedbary.data.sites import Site
    from fedbary.inference import Training, local_method
    from fedbary.methods import Local, Server, method_of
    from fedbary.tasks import task_of

    task, method = task_of(settings), method_of(settings)
    model = task.make_model(task.signature())
    by = settings.local
    x, y, rows = task.sample(math.ceil(STEPS / by.local_epochs) * by.batch_size)
    site = Site("partition 0", "", 0, settings.clients)
    training = Training(
        epochs=by.local_epochs,
        batch_size=by.batch_size,
        lr=by.lr,
    ).suited_to(model, len(y))
    inference = local_method(settings.inference, dict(settings))
    for _ in range(2):
        start = time.perf_counter()
        local = Local(
            model, x, y, task.loss({}), inference, training, by.prior_std,
            round=1, seed=0, augment=task.augments(site),
        )  # fmt: skip
        state = local.state()
        method.fit(local, method.send(Server(state, method.start(state)), site.name), {})
        seconds = time.perf_counter() - start
    at_once = 1
    if settings.engine == "ray":
        at_once = max(1, (os.cpu_count() or 1) // settings.cpus_per_client)
    tried, own = (math.ceil(count / by.batch_size) for count in (len(y), rows / settings.clients))
    of_a_step = seconds / (tried * method.passes(by.local_epochs, tried))
    steps = settings.clients * own * method.passes(by.local_epochs, own)
    return of_a_step * steps / by.local_epochs * ROUND_OVERHEAD / at_once
