"""Run and tabulate FedAvg, and RKLB and WB at n = 3: seeds 0-2, 10 rounds × 5 local epochs.

Each run is `fedbary simulate engine=inline protocol=short …`, two at a time; finished runs are
kept, so the script goes on after an interruption. The table's numbers are computed from the
final posteriors, on the test set, and printed as mean ± standard deviation over
the seeds; RESULTS/scores.csv has them run by run.

    python benchmarks/short_runs.py RESULTS data_dir=DATA
"""

from __future__ import annotations

import argparse
import csv
import itertools
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import load_file

from fedbary.config import resolve
from fedbary.federation import evaluation_data, make_model
from fedbary.metrics import evaluate
from fedbary.prediction import predict
from fedbary.seeds import derive_seed

METHODS = (("FedAvg", 0), ("RKLB", 3), ("WB", 3))
SEEDS = (0, 1, 2)
COLUMNS = ("accuracy", "nll", "ece 15", "ece 100", "brier")


def folder(results: Path, dataset: str, rule: str, layers: int, seed: int) -> Path:
    """Where one run's results lie."""
    return results / f"{dataset}-{rule}-n{layers}-seed{seed}"


def run(results: Path, dataset: str, rule: str, layers: int, seed: int, extra: list[str]) -> None:
    """Make one run unless it is finished; a run that was cut off starts again."""
    target = folder(results, dataset, rule, layers, seed)
    if (target / "posterior.safetensors").exists():
        return
    shutil.rmtree(target, ignore_errors=True)
    words = ["engine=inline", "protocol=short", f"dataset={dataset}", f"rule={rule}"]
    words += [f"bayesian_layers={layers}", f"seed={seed}", f"output={target}", *extra]
    command = [str(Path(sys.executable).parent / "fedbary"), "simulate", *words]
    with open(results / f"{target.name}.log", "w", encoding="utf-8") as log:
        code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    print(f"{target.name}: {'done' if code == 0 else f'failed, see {log.name}'}", flush=True)


def scores(target: Path) -> dict[str, float]:
    """Score a run's final posterior on the test set."""
    values = yaml.safe_load((target / "settings.yaml").read_text())["settings"]
    settings = resolve(values)
    model = make_model(settings)
    model.load_state_dict(load_file(target / "posterior.safetensors"))
    images, labels = evaluation_data(settings)
    seed = derive_seed(settings.seed, "predict-global", settings.rounds)
    generator = torch.Generator(images.device).manual_seed(seed)
    probs = predict(model, images, settings.samples, generator).probs
    few, many = (evaluate(probs, labels, bins) for bins in (15, 100))
    return {
        "accuracy": 100 * few["accuracy"],
        "nll": few["nll"],
        "ece 15": 100 * few["ece"],
        "ece 100": 100 * many["ece"],
        "brier": few["brier"],
    }


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="folder of the run folders")
    parser.add_argument("settings", nargs="*", help="key=value for every run, such as data_dir")
    parser.add_argument("--datasets", nargs="+", default=["fashionmnist", "cifar10"])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    grid = list(itertools.product(args.datasets, SEEDS, METHODS))
    with ThreadPoolExecutor(args.jobs) as pool:
        for dataset, seed, (rule, layers) in grid:
            pool.submit(run, args.results, dataset, rule, layers, seed, args.settings)
    print(f"| data set | method | {' | '.join(COLUMNS)} |\n|---|---|{'---|' * len(COLUMNS)}")
    table = [["data set", "rule", "bayesian_layers", "seed", *COLUMNS]]
    for dataset, (rule, layers) in itertools.product(args.datasets, METHODS):
        done = []
        for seed in SEEDS:
            target = folder(args.results, dataset, rule, layers, seed)
            if (target / "posterior.safetensors").exists():
                done.append(scores(target))
                table.append([dataset, rule, layers, seed, *done[-1].values()])
        if done:
            cells = [np.array([row[column] for row in done]) for column in COLUMNS]
            text = " | ".join(f"{c.mean():.4g} ± {c.std(ddof=len(c) > 1):.2g}" for c in cells)
            print(f"| {dataset} | {rule}, n = {layers} ({len(done)} seeds) | {text} |")
    with open(args.results / "scores.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(table)


if __name__ == "__main__":
    main()
