"""Data sets of one's own, as `dataset=own_data:<function>` names them."""

import os
from pathlib import Path

import numpy as np
import pandas as pd


def bars():
    """Bars in noise: the label is the row that is bright."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 8, 400)
    x = rng.integers(0, 128, (400, 8, 8), dtype=np.uint8)
    x[np.arange(400), y] += 100
    return {"x_train": x[:300], "y_train": y[:300], "x_test": x[300:], "y_test": y[300:]}


def bars_in_another_order():
    """The same bars, as a frame that is shuffled without a seed has them in another process."""
    held = bars()
    return {name: rows[::-1].copy() for name, rows in held.items()}


READERS = "FEDBARY_READERS"
"""Environment variable: the folder in which a raylet's workers note that they have read data."""


def bars_on_raylets():
    """Bars; a worker of Ray notes its raylet's process."""
    if raylet := os.environ.get("RAY_RAYLET_PID"):
        (Path(os.environ[READERS]) / raylet).touch()
    return bars()


def patients():
    """Return a table whose outcome follows from the age."""
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 90, 200)
    outcome = np.where(age + rng.normal(0, 5, 200) > 60, "ill", "well")
    return pd.DataFrame({"age": age, "ward": rng.choice(["a", "b"], 200), "outcome": outcome})


def three():
    return 3


def fails():
    raise RuntimeError("no\ndisk")
