"""Two streams of five tasks: classes that come in pairs, and digits that turn in steps.

Each task's data are new; a chain of runs goes from task to task by `start_from`. After each task
the model is scored on the test part of every task so far.

    python -m findings.stream.cells OUT --seeds 0 1 2

OUT gets the data and `cells.jsonl`, a line a run as it ends. What is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import rotate
from sklearn.datasets import load_digits

import fedbary
from fedbary.settings.config import completed
from server_app.engine.inline import run_inline

TASKS, DEGREES = 5, 20

COMMON: Mapping[str, Any] = {
    "engine": "inline", "pictures": False, "device": "cpu", "clients": 3, "partition": "iid",
    "model": "linear", "normalise": "none", "rounds": 4, "local_epochs": 3, "batch_size": 32,
    "lr": 0.05, "lr_schedule": "constant", "evaluate_clients": 0, "holdout": 0.0,
}  # fmt: skip
STEPS = ("local_epochs", "batch_size", "lr", "lr_schedule")
"""Settings that sums have no use for."""

METHODS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg, all data anew": {"rule": "FedAvg", "bayesian_layers": 0},
    "FedAvg": {"rule": "FedAvg", "bayesian_layers": 0},
    "RKLB": {"rule": "RKLB", "bayesian_layers": 1},
    "RKLB, prior=earlier, kl_weight=1": {"bayesian_layers": 1, "prior": "earlier", "kl_weight": 1},
    "RKLB, prior=earlier, kl_weight=10": {
        "bayesian_layers": 1, "prior": "earlier", "kl_weight": 10,
    },
    "PVI": {"method": "PVI", "bayesian_layers": 1, "kl_weight": 1},
    "FOLA, strength=1": {"method": "FOLA", "strength": 1},
    "FOLA, strength=100": {"method": "FOLA", "strength": 100},
    "LDA": {"method": "LDA"},
}  # fmt: skip
ANEW = "FedAvg, all data anew"


def stream(kind: str, seed: int) -> list[dict[str, np.ndarray]]:
    """Return each task's arrays: a fifth of its digits is its test part."""
    held = load_digits()
    images, labels = held.images, held.target
    order = np.random.default_rng(seed).permutation(len(labels))
    found = []
    for task in range(TASKS):
        if kind == "classes":
            rows = order[np.isin(labels[order], (2 * task, 2 * task + 1))]
            x = images[rows]
        else:
            rows = order[task::TASKS]
            turned = rotate(images[rows], DEGREES * task, axes=(1, 2), reshape=False, order=1)
            x = turned.clip(0, 16)
        x, test = (x[:, None] / 16 * 255).astype(np.uint8), len(rows) // 5
        y = labels[rows]
        found.append(
            {"x_train": x[test:], "y_train": y[test:], "x_test": x[:test], "y_test": y[:test]}
        )
    return found


def scores(run: Path, tasks: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Return accuracy on the last task and, in the mean, on those before; NLL on all of them."""
    model, right, nll = fedbary.load(run), [], []
    for task in tasks:
        y = torch.as_tensor(task["y_test"])
        probs = model.predict(torch.as_tensor(task["x_test"])).probs.cpu()
        right.append(float((probs.argmax(1) == y).double().mean()))
        nll.append(-probs[torch.arange(len(y)), y].double().clamp_min(1e-12).log())
    old = float(np.mean(right[:-1])) if right[:-1] else float("nan")
    return {"new": right[-1], "old": old, "nll": float(torch.cat(nll).mean())}


def measure(out: Path, kind: str, seed: int, done: set[str]) -> None:
    """Make the chains of a stream and a seed."""
    tasks = stream(kind, seed)
    for task in range(TASKS):
        seen = tasks[: task + 1]
        tests = {n: np.concatenate([t[n] for t in seen]) for n in ("x_test", "y_test")}
        for name, some in (("new", seen[-1:]), ("all", seen)):
            arrays = {n: np.concatenate([t[n] for t in some]) for n in ("x_train", "y_train")}
            np.savez(out / f"{kind}-{seed}-{task}-{name}.npz", **arrays, **tests)
    for number, (method, own) in enumerate(METHODS.items()):
        before = "none"
        for task in range(TASKS):
            folder = out / f"{kind}-{seed}-{number}-{task}"
            key = folder.name
            if key not in done:
                anew = method == ANEW
                values = {**COMMON, **own, "seed": seed, "start_from": "none" if anew else before}
                values["dataset"] = str(
                    out / f"{kind}-{seed}-{task}-{'all' if anew else 'new'}.npz"
                )
                if task == 0 and "prior" in values:
                    del values["prior"]
                if method == "LDA":
                    values = {n: v for n, v in values.items() if n not in STEPS} | {"rounds": 1}
                run_inline(completed(values), folder)
                line = {"key": key, "stream": kind, "seed": seed, "method": method, "task": task}
                line |= scores(folder, tasks[: task + 1])
                with open(out / "cells.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            before = str(folder)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    file = asked.out / "cells.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    done = {json.loads(line)["key"] for line in lines}
    for seed in asked.seeds:
        for kind in ("classes", "turns"):
            measure(asked.out, kind, seed, done)


if __name__ == "__main__":
    main()
