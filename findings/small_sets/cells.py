"""The default settings on thirteen small sets, beside a linear model of all data in one place.

Every set is dealt to 3 and to 10 clients, with Dirichlet shares of concentration 0.1 and 0.5: of
the labels, or of a regression of the sizes. A cell is a run with the task's defaults; its
score is the last round's on the test part: accuracy, or R² of a regression. `rival` is that of the
linear model that the server fits, `behind` what the run says of it. Where a set is too
small for ten clients, `min_examples` is the largest of 5, 2 and 1 that a deal allows; with none the
cell is left out. Beside it is scikit-learn's logistic or linear regression of the same training
data, pixels or standardised columns, undivided.

    python -m findings.small_sets.cells OUT DIR

OUT gets the data and `cells.jsonl`, a line a cell as it ends; cells that are there are not made
again. DIR holds Fashion-MNIST and CIFAR-10, as `data_dir`.
"""

import json
import logging
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, load_wine
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedbary.data.deal import evaluation_data, training_data
from fedbary.data.images import load
from fedbary.errors import SettingError
from fedbary.settings.config import Settings, resolve
from fedbary.tasks import _failing, task_of
from findings.heads import add_line
from server_app.engine.inline import run_inline

CLIENTS, ALPHAS, SEEDS = (3, 10), (0.1, 0.5), range(5)

TABLES: Mapping[str, Mapping[str, Any]] = {
    "wines": {"dataset": "wines.csv", "target": "target"},
    "breast cancer": {"dataset": "breast_cancer"},
    "visits": {"dataset": "visits.csv", "target": "back"},
}
REGRESSIONS: Mapping[str, Mapping[str, Any]] = {
    "diabetes, FedAG": {},
    "diabetes, RKLB": {"protocol": "regression-vi"},
}
IMAGES = (
    "two colours", "plain colours", "circles and squares", "digits, 600", "Fashion-MNIST, 500",
    "Fashion-MNIST, 2000", "CIFAR-10, 500", "CIFAR-10, 2000",
)  # fmt: skip
SETS = (*IMAGES, *TABLES, *REGRESSIONS)


def colours(noise: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 60 red and 60 blue pictures of 32×32 pixels, each pixel off by up to `noise`."""
    draw = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = draw.integers(0, 60, (120, 3, 1, 1)) + draw.integers(-noise, noise + 1, (120, 3, 32, 32))
    x[np.arange(120), 2 * y] += 160
    return x.clip(0, 255).astype(np.uint8), y


def shapes() -> tuple[np.ndarray, np.ndarray]:
    """Return 150 circles and 150 squares of 28×28 pixels, of any size and place."""
    draw = np.random.default_rng(0)
    y = np.arange(300) % 2
    rows, columns = np.mgrid[:28, :28]
    pictures = []
    for square in y:
        radius, (row, column) = draw.uniform(4, 9), draw.uniform(10, 18, 2)
        far = np.abs(rows - row), np.abs(columns - column)
        inside = np.maximum(*far) < radius if square else np.hypot(*far) < radius
        pictures.append(np.where(inside, 200, 40) + draw.integers(-30, 31, (28, 28)))
    return np.stack(pictures)[:, None].astype(np.uint8), y


def write(out: Path, data: Path) -> None:
    """Write the sets: of images .npz files, of which a fifth is tested, of large ones 1000.

    Visits have an identity, levels, numbers and noise in the answer.
    """
    digits = load_digits()
    made = {
        "two colours": colours(60),
        "plain colours": colours(0),
        "circles and squares": shapes(),
        "digits, 600": ((digits.images[:750, None] / 16 * 255).astype(np.uint8),
                        digits.target[:750]),
    }  # fmt: skip
    sets = {name: (x, y, len(y), len(y) // 5) for name, (x, y) in made.items()}
    for dataset, called in (("fashionmnist", "Fashion-MNIST"), ("cifar10", "CIFAR-10")):
        held = load(dataset, data, download=False)
        for size in (500, 2000):
            x, y = held.x_train.numpy(), held.y_train.numpy()
            sets[f"{called}, {size}"] = x, y, size + 1000, 1000
    for name, (x, y, count, test) in sets.items():
        order = np.random.default_rng(1).permutation(len(y))[:count]
        parts = {"train": order[:-test], "test": order[-test:]}
        arrays = {f"{n}_{part}": of[rows] for part, rows in parts.items()
                  for n, of in (("x", x), ("y", y))}  # fmt: skip
        np.savez(out / f"{name}.npz", **arrays)
    load_wine(as_frame=True).frame.to_csv(out / "wines.csv", index=False)
    draw = np.random.default_rng(0)
    lines = ["visit,ward,sex,age,days,back"]
    for visit in range(400):
        ward, sex = draw.integers(5), draw.integers(2)
        age, days = draw.normal(60, 15), draw.gamma(2, 3)
        log_odds = 1.5 * (ward - 2) + 0.08 * (age - 60) + 0.3 * (days - 6)
        back = "yes" if draw.random() < 1 / (1 + np.exp(-log_odds)) else "no"
        lines.append(f"{1000 + visit},w{ward},{'mf'[sex]},{age:.0f},{days:.1f},{back}")
    (out / "visits.csv").write_text("\n".join(lines) + "\n")


def settings_of(out: Path, name: str, clients: int, alpha: float, seed: int) -> Settings:
    """Return the settings of a cell: the task's defaults."""
    given: dict[str, Any] = {"engine": "inline", "pictures": False, "device": "cpu"}
    given |= {"clients": clients, "alpha": alpha, "seed": seed, "evaluate_clients": 0}
    if name in REGRESSIONS:
        given |= {"task": "regression", "split": seed, "partition": "quantity"}
    elif name in TABLES:
        given |= {"task": "tables", "split": seed, "data_dir": str(out)}
    else:
        given |= {"dataset": str(out / f"{name}.npz")}
    return resolve({**given, **TABLES.get(name, {}), **REGRESSIONS.get(name, {})})


def dealt(settings: Settings) -> Settings | None:
    """Return settings under which every client gets its least number of examples; None if none."""
    for least in (settings.min_examples, 5, 2, 1):
        found = settings.model_copy(update={"min_examples": least})
        with suppress(SettingError):
            task_of(found).check(own_data=False)
            return found
    return None


def linear(settings: Settings) -> float:
    """Return the score of a linear model of all training data."""
    task = task_of(settings)
    x, y = (part.numpy() for part in training_data(task.held, task.deal))
    x_test, y_test = (part.numpy() for part in evaluation_data(task.held, task.deal))
    if settings.task == "classification":
        model = LogisticRegression(max_iter=1000)
        x, x_test = x.reshape(len(x), -1) / 255, x_test.reshape(len(x_test), -1) / 255
    elif settings.task == "tables":
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    else:
        model = LinearRegression()
    return float(model.fit(x, y).score(x_test, y_test))


def rival(settings: Settings) -> float:
    """Return the score of the linear model that the run is compared with itself."""
    task = task_of(settings)
    y = evaluation_data(task.held, task.deal)[1]
    classes = 0 if settings.task == "regression" else len(task.signature().classes)
    found = _failing.rival(task.held, task.deal, classes)
    assert found is not None
    if classes:
        return float((found.answers.argmax(1) == y).double().mean())
    errors = found.answers[:, 0].double() - y
    return 1 - float(errors.square().mean() / y.double().var(correction=0))


def federated(settings: Settings) -> dict[str, Any]:
    """Make a run; return its score, and whether it says that it fails or is behind."""
    with tempfile.TemporaryDirectory() as scratch:
        run_inline(settings, Path(scratch) / "run")
        line = json.loads((Path(scratch) / "run/metrics.jsonl").read_text().splitlines()[-1])
    score = line.get("accuracy")
    if settings.task == "regression":
        task = task_of(settings)
        spread = float(evaluation_data(task.held, task.deal)[1].double().std(correction=0))
        score = 1 - (line["rmse"] / spread) ** 2
    said = {word: line.get(word, "") for word in ("failing", "behind")}
    score = {"score": score, "rival": rival(settings)}
    return {**score, **said, "min_examples": settings.min_examples}


def main(out: Path, data: Path) -> None:
    """Make the cells that are missing."""
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "visits.csv").exists():
        write(out, data)
    for seed, name, clients, alpha in product(SEEDS, SETS, CLIENTS, ALPHAS):

        def made(of: tuple[str, int, float, int] = (name, clients, alpha, seed)) -> dict[str, Any]:
            settings, start = settings_of(out, *of), time.perf_counter()
            found = dealt(settings)
            cell = {"linear": linear(settings), **(federated(found) if found else {})}
            return {**cell, "seconds": time.perf_counter() - start}

        place = {"set": name, "clients": clients, "alpha": alpha, "seed": seed}
        add_line(out / "cells.jsonl", place, made)


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:3]))
