"""Clients of several kinds: pictures turned by quarters, and labels with two meanings.

    python -m findings.groups.cells DATA OUT

DATA is a folder with Fashion-MNIST, OUT gets the data and `cells.jsonl`, a line a run as it ends.
What is there is not made again. A run has 12 clients with 250 examples each, of which 100 are held
out and score. Each method's step has the least held-out NLL on other pictures, at a seed of its
own; those runs are lines with `choice` true. Found groups have the step of given ones.
"""

import json
import logging
import sys
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedbary.data.images.fashionmnist import read
from fedbary.data.partition import partition
from fedbary.runs.location import read_rounds
from fedbary.seeds import derive_seed
from fedbary.settings.config import read_yaml, resolve
from findings.heads import add_line
from server_app.engine.inline import run_inline

CLIENTS, EXAMPLES, TURNS, CHOICE_SEED = 12, 250, 4, 100
SEEDS = range(5)
STEPS = (0.02, 0.06, 0.2)
FURTHER = 0.6
"""A step that is tried where the largest of `STEPS` is best."""

COMMON: Mapping[str, Any] = {
    "engine": "inline", "pictures": False, "device": "cpu", "clients": CLIENTS, "partition": "iid",
    "model": "findings.groups.cells:network", "rounds": 10, "local_epochs": 4, "batch_size": 50,
    "evaluate_clients": 10, "holdout": 0.4,
}  # fmt: skip

ALONE = ",".join(map(str, range(CLIENTS)))
POINT = {"rule": "FedAvg", "bayesian_layers": 0}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "one model, FedAvg": POINT,
    "each client alone": {"method": "Hierarchy", "groups": ALONE, "bayesian_layers": 1},
    "FedBN, FedAvg": {"method": "FedBN", **POINT},
    "pFedVem": {"method": "pFedVem", "bayesian_layers": 1},
    "groups given, FedAvg": {"method": "Hierarchy", **POINT},
    "groups given, RKLB": {"method": "Hierarchy", "bayesian_layers": 1},
    "groups found, RKLB": {"method": "Hierarchy", "bayesian_layers": 1},
}  # fmt: skip


def network(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a hidden layer of 100 with batch norm."""
    hidden = nn.Linear(int(np.prod(shape)), 100)
    return nn.Sequential(
        nn.Flatten(), hidden, nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, outputs)
    )


def kinds_of(stream: str) -> list[int]:
    """Return each client's kind."""
    return [k % (TURNS if stream == "turned" else 2) for k in range(CLIENTS)]


def write_data(pool: Mapping[str, np.ndarray], stream: str, seed: int, file: Path) -> np.ndarray:
    """Write a seed's data, each example as its client's kind has it; return the label counts."""
    half = len(pool["y_train"]) // 2
    first = 0 if seed >= CHOICE_SEED else half
    rows = first + np.random.default_rng(seed).permutation(half)[: CLIENTS * EXAMPLES]
    x, y = pool["x_train"][rows].copy(), pool["y_train"][rows].copy()
    deal = derive_seed(seed, "partition")
    counts = []
    for kind, own in zip(
        kinds_of(stream), partition(y, "iid", CLIENTS, deal, min_examples=1), strict=True
    ):
        if stream == "turned":
            x[own] = np.rot90(x[own], kind, axes=(-2, -1))
        else:
            y[own] = (y[own] + 5 * kind) % 10
        counts.append(np.bincount(y[own], minlength=10))
    x_test, y_test = pool["x_test"][:200], pool["y_test"][:200]
    np.savez(file, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return np.array(counts)


def scores(run: Path, stream: str) -> dict[str, float]:
    """Return mean scores of the models that clients use, on what they hold out.

    `pure` is the fraction of the clients in whose group the commonest kind is theirs.
    """
    line = read_rounds(run)[-1]
    rows = line["held_out"]["clients"]
    found = {
        name: float(np.mean([row.get(f"personal-{name}", row[name]) for row in rows]))
        for name in ("accuracy", "nll", "ece")
    }
    found["common accuracy"] = float(np.mean([row["accuracy"] for row in rows]))
    if "groups" in line:
        kinds, same = kinds_of(stream), 0
        for own in line["groups"].values():
            held = [kinds[int(site.split()[1])] for site in own["sites"]]
            same += max(map(held.count, held))
        found["pure"] = same / CLIENTS
    return found


def made(
    pool: Mapping[str, np.ndarray], out: Path, stream: str, method: str, seed: int, lr: float
) -> dict[str, float]:
    """Make a run, and return its scores."""
    file, kinds = out / f"{stream}-{seed}.npz", kinds_of(stream)
    counts = write_data(pool, stream, seed, file)
    values = {**COMMON, **METHODS[method], "lr": lr, "seed": seed, "dataset": str(file)}
    if values.get("method") == "Hierarchy":
        given = ",".join(map(str, kinds)) if "given" in method else max(kinds) + 1
        values.setdefault("groups", given)
    folder = out / "runs" / f"{stream}-{seed}-{method}-{lr}".replace(" ", "-")
    run_inline(resolve(values), folder)
    if not np.array_equal(read_yaml(folder / "settings.yaml")["label_counts"], counts):
        raise RuntimeError(f"{folder}: the run has dealt other examples")
    return scores(folder, stream)


def main(data: Path, out: Path) -> None:
    """Make the runs that are not there yet: those that choose a step, then those that score."""
    out.mkdir(parents=True, exist_ok=True)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    file, pool = out / "cells.jsonl", read(data, download=False)

    def best(stream: str, method: str) -> float:
        """Return the step of the least held-out NLL."""
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        like = {"stream": stream, "method": method, "choice": True}
        return min((e for e in lines if like.items() <= e.items()), key=lambda e: e["nll"])["lr"]

    for seed, stream, method in product((CHOICE_SEED, *SEEDS), ("turned", "labels"), METHODS):
        choice, like = seed == CHOICE_SEED, method.replace("found", "given")
        if choice and like != method:
            continue
        for lr in (*STEPS, FURTHER) if choice else (best(stream, like),):
            if lr == FURTHER and choice and best(stream, like) < STEPS[-1]:
                continue
            place = {"stream": stream, "seed": seed, "method": method, "lr": lr, "choice": choice}
            add_line(file, place, partial(made, pool, out, stream, method, seed, lr))


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:3]))
