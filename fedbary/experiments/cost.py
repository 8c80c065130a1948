"""How long a run takes on this machine: from like runs that are done, else from a few steps."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from fedbary.config import Settings
from fedbary.errors import SettingError

STEPS = 12
START_SECONDS = {"inline": 1.0, "ray": 5.0}
"""What reading the data and drawing pictures takes, and starting what the engine needs."""

ROUND_OVERHEAD = 1.15
"""What a round takes over its clients' training: aggregation and evaluation."""


class Cost:
    """Estimates of runs' seconds.

    Parameters
    ----------
    done
        Rows of runs that were made, one table each.
    """

    def __init__(self, done: Sequence[pd.DataFrame]) -> None:
        self._known: dict[tuple[object, ...], float] = {}
        for rows in done:
            first = rows.iloc[0]
            passes = first["local_epochs"] * first["rounds"] * first["participation"]
            self._known[_like(first)] = float(rows["seconds"].sum() / passes)

    def seconds(self, settings: Settings) -> float | None:
        """Return a run's seconds; None if a few steps cannot be tried, for want of data say."""
        passes = settings.local_epochs * settings.rounds * settings.participation
        key = _like(pd.Series(settings.model_dump()))
        if key not in self._known:
            try:
                self._known[key] = _seconds_of_an_epoch(settings)
            except SettingError:
                return None
        return START_SECONDS[settings.engine] + self._known[key] * passes


def _like(row: pd.Series) -> tuple[object, ...]:
    keys = ("bayesian_layers", "batch_size", "inference", "engine")
    return Path(row["dataset"]).name, row.get("model", "cnn"), *(row[key] for key in keys)


def _seconds_of_an_epoch(settings: Settings) -> float:
    """Train a few steps as a client does, and scale to one pass over all the training data."""
    of = _seconds_of_images if settings.task == "classification" else _seconds_of_a_regression
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.cpus_per_client)
    try:
        return of(settings)
    finally:
        torch.set_num_threads(threads)


def _seconds_of_images(settings: Settings) -> float:
    from fedbary.federation import augments, load_dataset, make_model
    from fedbary.inference import Training, local_method

    settings = settings.model_copy(update={"download": False})
    dataset = load_dataset(settings)
    model = make_model(settings)
    device = next(model.parameters()).device
    count = min(STEPS * settings.batch_size, len(dataset.y_train))
    x, y = dataset.x_train[:count].to(device), dataset.y_train[:count].to(device)
    training = Training(batch_size=settings.batch_size, kl_weight=settings.kl_weight)
    fit = local_method(settings.inference)
    for _ in range(2):
        start = time.perf_counter()
        fit(model, x, y, settings.prior_std, training, seed=0, augment=augments(settings))
        seconds = time.perf_counter() - start
    at_once = 1
    if settings.engine == "ray":
        at_once = max(1, (os.cpu_count() or 1) // settings.cpus_per_client)
    return seconds * len(dataset.y_train) / count * ROUND_OVERHEAD / at_once


def _seconds_of_a_regression(settings: Settings) -> float:
    """Train an epoch on some rows, and scale to one pass over all of them."""
    from fedbary.inference import Training, local_method
    from fedbary.regression.federation import make_model, task_of, training_data
    from fedbary.regression.networks import gaussian_nll
    from fedbary.regression.sgd import fit

    x, y = (part.float() for part in training_data(settings))
    part, model = slice(STEPS * settings.batch_size), make_model(settings, task_of(settings))
    x_part, y_part = torch.zeros_like(x[part]), torch.zeros_like(y[part])
    for _ in range(2):
        start = time.perf_counter()
        if settings.rule == "FedAG":
            fit(model, x_part, y_part, 1, settings.batch_size, settings.lr, seed=0)
        else:
            training = Training(batch_size=settings.batch_size)
            method = local_method(settings.inference)
            method(model, x_part, y_part, 1.0, training, seed=0, nll=gaussian_nll)
        seconds = time.perf_counter() - start
    return seconds * len(y) / len(y_part) * ROUND_OVERHEAD
