"""Clients of several kinds: pictures turned by quarters, and labels with two meanings.

    python -m findings.groups.cells DATA OUT --seeds 0 1 2 3 4

DATA is a folder with Fashion-MNIST, OUT gets the data and `cells.jsonl`, a line a run as it ends.
What is there is not made again. A run has 12 clients with 250 examples each, of which 100 are held
out and score. Each method's step has the least held-out NLL on other pictures, at a seed of its
own; those runs are lines with `choice` true. Found groups have the step of given ones.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedbary.data.images.fashionmnist import read
from fedbary.data.partition import partition
from fedbary.runs.metrics_file import read_rounds
from fedbary.seeds import derive_seed
from fedbary.settings.config import read_yaml, resolve
from server_app.engine.inline import run_inline

CLIENTS, EXAMPLES, TURNS, CHOICE_SEED = 12, 250, 4, 100
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


def measure(
    pool: Mapping[str, np.ndarray], out: Path, stream: str, seed: int, lines: list[dict[str, Any]]
) -> None:
    """Make the runs of a stream and a seed that are not there yet."""
    file, choice = out / f"{stream}-{seed}.npz", seed == CHOICE_SEED
    counts = write_data(pool, stream, seed, file)
    kinds = kinds_of(stream)
    for method, own in METHODS.items():
        if choice and "found" in method:
            continue
        like = (stream, method.replace("found", "given"))
        for lr in (*STEPS, FURTHER):
            tried = [e for e in lines if e["choice"] and (e["stream"], e["method"]) == like]
            best = min(tried, key=lambda e: float(e["nll"]))["lr"] if tried else None
            if lr != best if not choice else lr == FURTHER and best not in (STEPS[-1], FURTHER):
                continue
            key = f"{stream}-{seed}-{method}-{lr}"
            if any(line["key"] == key for line in lines):
                continue
            values = {**COMMON, **own, "lr": lr, "seed": seed, "dataset": str(file)}
            if own.get("method") == "Hierarchy":
                given = method.startswith("groups given")
                count = max(kinds) + 1
                values.setdefault("groups", ",".join(map(str, kinds)) if given else count)
            folder = out / "runs" / key.replace(" ", "-")
            run_inline(resolve(values), folder)
            if not np.array_equal(read_yaml(folder / "settings.yaml")["label_counts"], counts):
                raise RuntimeError(f"{key}: the run has dealt other examples")
            line = {"key": key, "stream": stream, "seed": seed, "method": method, "lr": lr}
            line |= {"choice": choice, **scores(folder, stream)}
            lines.append(line)
            with open(out / "cells.jsonl", "a", encoding="utf-8") as held:
                held.write(json.dumps(line) + "\n")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    file = asked.out / "cells.jsonl"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    pool = read(asked.data, download=False)
    for seed in (CHOICE_SEED, *asked.seeds):
        for stream in ("turned", "labels"):
            measure(pool, asked.out, stream, seed, lines)


if __name__ == "__main__":
    main()
