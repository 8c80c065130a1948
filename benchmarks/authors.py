"""Time a round of BA-BFL's public code beside ours, with all eleven models evaluated.

One round of one local epoch on Fashion-MNIST: ten clients, Dirichlet 0.5, n = 3, RKLB, batch size
64; then the ten local models and the global one on the 10,000 test images, 10 samples each
(target: 30 times as fast). Theirs is the command of their script for that experiment, ten processes
at once, on the CPU; ours is `fedbary simulate protocol=paper`, in one process (inline) and on Ray.
Sides alternate within one run, with one thread a process, or (`--threads 1 default`) also with as
many as each takes by itself; ten processes that have as many threads as there are cores hinder one
another so much that theirs may then take a quarter of an hour and more. A round starts when data
and models are there (theirs: after the split; ours: after round 0 is scored) and ends when the
eleventh model is scored. CPU seconds are those of the command and all that it started; other
programs change them less than wall seconds.

    python -m benchmarks.authors CLONE data_dir=DATA

CLONE is a clone of github.com/NourJamoussi/Information-Geometry-for-Bayesian-Federated-Learning.
Nothing is changed in it: `CORRECTIONS`, without which it does not run, are made on a copy.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch

from fedbary.data.images import load
from fedbary.errors import RunError, SettingError
from fedbary.settings.config import Settings, parse_overrides, resolve

MODELS = 11
POLL = 0.05
"""Seconds between two looks at whether a round has started or ended."""

THREADS = {"1": "1", "default": None}
"""A process's threads, and what OMP_NUM_THREADS then is; none: unset."""


class Correction(NamedTuple):
    """What a file of theirs needs to run here: each match of `old` becomes `new`."""

    file: str
    old: str
    new: str
    why: str


CORRECTIONS = (
    Correction(
        "utils/FL/aggregation_functions.py", r"\.cpu\(\)", "", "NumPy's arrays have no .cpu()"
    ),
    Correction(
        "arg_parser.py", r'("noniid-labeldir" .*"comm_round": )50\b', r"\g<1>1",
        "no argument sets the number of rounds",
    ),
)  # fmt: skip

ABSENT = {"ivon.py": "IVON = object\n"}
"""Modules that they import and SGD does not use, in place of a package that is not installed."""


class Spent(NamedTuple):
    """What a round took, in seconds, and the accuracies of the models that it ended with."""

    wall: float
    cpu: float
    accuracies: Sequence[float]


def corrected(clone: Path, folder: Path) -> Path:
    """Copy their program from its clone into a folder, correct the copy and return where it is."""
    source, copy = clone / "BFL", folder / "BFL"
    if not (source / "train.py").is_file():
        raise SettingError("clone", str(clone), "a folder that holds BFL/train.py")
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "notebooks"))
    for correction in CORRECTIONS:
        file = copy / correction.file
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        text, times = re.subn(correction.old, correction.new, text)
        if not times:
            expected = f"a text that matches {correction.old} ({correction.why})"
            raise SettingError("clone", str(source / correction.file), expected)
        file.write_text(text, encoding="utf-8")
    for name, stub in ABSENT.items():
        (copy / name).write_text(stub, encoding="utf-8")
    return copy


def keep_data(settings: Settings, folder: Path) -> None:
    """Write the images where their code looks for them before it fetches any."""
    data = load("fashionmnist", settings.data_dir, settings.download)
    parts = {"train": data.examples, "test": (data.x_test, data.y_test)}
    (folder / "fmnist").mkdir(parents=True)
    for part, (x, y) in parts.items():
        torch.save(x.squeeze(1).clone(), folder / "fmnist" / f"{part}_data.pt")
        np.save(folder / "fmnist" / f"{part}_target.npy", y.numpy())


def cpu_seconds(process: psutil.Process) -> float:
    """CPU seconds of a process and of all that it has started."""
    seconds = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            seconds += sum(one.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return seconds


def timed(
    command: Sequence[str], folder: Path, threads: str | None, reached: Callable[[], int]
) -> tuple[float, float]:
    """Run a command in a folder and return the wall and CPU seconds of its round.

    `reached` says where the command is: 0 before the round, 1 in it, 2 after it.
    """
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    if threads:
        environment["OMP_NUM_THREADS"] = threads
    marks: list[tuple[float, float]] = []
    said = folder / "said"
    with open(said, "w") as output:
        process = psutil.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        while process.poll() is None:
            if len(marks) < 2 and reached() > len(marks):
                marks.append((time.perf_counter(), cpu_seconds(process)))
            time.sleep(POLL)
    if process.returncode or len(marks) < 2:
        last = said.read_text(errors="replace").strip().rpartition("\n")[2]
        raise RunError(f"{' '.join(command[:2])}: no whole round; it ended with: {last}")
    (start, before), (end, after) = marks
    return end - start, after - before


def theirs(copy: Path, data: Path, threads: str | None) -> Spent:
    """Let their code run a round."""
    logs = Path(tempfile.mkdtemp(dir=copy))
    command = [
        sys.executable, "train.py", "--dataset=fmnist", "--alg=BFLAVG",
        "--experiment=noniid-labeldir", "--partition=noniid-labeldir", "--process=10",
        "--optimizer=sgd", "--nbl=3", "--update_method=rkl", "--epochs=1", "--device=cpu",
        f"--datadir={data}", f"--logdir={logs}",
    ]  # fmt: skip

    def reached() -> int:
        return len([*logs.rglob("test_dl_global_0.pkl"), *logs.rglob("checkpoint.pt")])

    wall, cpu = timed(command, copy, threads, reached)
    tables = [*logs.rglob("local_results_*.csv"), *logs.rglob("global_log.csv")]
    scored = []
    for table in tables:
        with open(table, newline="") as file:
            scored += [float(row["Acc"]) / 100 for row in csv.DictReader(file)]
    return Spent(wall, cpu, scored)


def ours(engine: str, words: Sequence[str], folder: Path, threads: str | None) -> Spent:
    """Let fedbary run a round."""
    results = Path(tempfile.mkdtemp(dir=folder)) / "run"
    lines = results / "metrics.jsonl"
    command = [
        str(Path(sys.executable).parent / "fedbary"), "simulate", "dataset=fashionmnist",
        "protocol=paper", "rounds=1", "local_epochs=1", "device=cpu", "pictures=false",
        *words, f"engine={engine}", f"output={results}",
    ]  # fmt: skip

    def reached() -> int:
        return lines.read_bytes().count(b"\n") if lines.is_file() else 0

    wall, cpu = timed(command, folder, threads, reached)
    line = json.loads(lines.read_text().splitlines()[-1])
    local = [client["local-accuracy"] for client in line["clients"]]
    return Spent(wall, cpu, [*local, line["accuracy"]])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clone", type=Path, help="a clone of the papers' public code")
    parser.add_argument("settings", nargs="*", help="key=value, such as data_dir")
    parser.add_argument("--repeats", type=int, default=3, help="alternations")
    parser.add_argument("--threads", choices=THREADS, nargs="+", default=["1"])
    args = parser.parse_intermixed_args(arguments)
    found: dict[tuple[str, str], list[Spent]] = {}
    try:
        settings = resolve({"protocol": "paper", **parse_overrides(args.settings)})
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            copy = corrected(args.clone, folder)
            keep_data(settings, folder / "data")
            for _ in range(args.repeats):
                for label in args.threads:
                    threads = THREADS[label]
                    sides = {
                        "theirs": theirs(copy, folder / "data", threads),
                        "inline": ours("inline", args.settings, folder, threads),
                        "ray": ours("ray", args.settings, folder, threads),
                    }
                    for side, spent in sides.items():
                        if len(spent.accuracies) != MODELS:
                            raise RunError(f"{side}: {len(spent.accuracies)} models were scored")
                        found.setdefault((label, side), []).append(spent)
    except (SettingError, RunError) as error:
        sys.exit(f"authors: {error}")
    print("| threads | side | wall s | CPU s | global accuracy | theirs / ours, wall | CPU |")
    print("|---|---|---|---|---|---|---|")
    for (label, side), rounds in found.items():
        other = found[label, "theirs"]
        pairs = list(zip(other, rounds, strict=True))
        cells = [
            f"{statistics.median(r.wall for r in rounds):.1f}",
            f"{statistics.median(r.cpu for r in rounds):.1f}",
            f"{statistics.median(r.accuracies[-1] for r in rounds):.3f}",
            f"{statistics.median(their.wall / own.wall for their, own in pairs):.1f}",
            f"{statistics.median(their.cpu / own.cpu for their, own in pairs):.1f}",
        ]
        print(f"| {label} | {side} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
