"""Time a simulated round: 10 clients, Fashion-MNIST, 1 local epoch, n = 3, Ray on all cores.

Prints the wall seconds of a round over the sum of the clients' own training seconds divided by the
number of clients at work at once (target: at most 1.08; the server's evaluation of the global
model is in the wall time), and the seconds of a round in which all ten local models and the
global one are evaluated too, 10 samples on 10,000 images each. Round 1, which starts the actors,
is left out.

    python benchmarks/round.py data_dir=DATA
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def rounds(folder: Path, words: list[str]) -> list[dict[str, Any]]:
    """Run a simulation and return what it recorded of each round after the first."""
    command = [str(Path(sys.executable).parent / "fedbary"), "simulate", f"output={folder}", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[2:]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help="key=value, such as data_dir")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of each run")
    args = parser.parse_args()
    at_once = os.cpu_count() or 1
    words = ["dataset=fashionmnist", "protocol=short", "local_epochs=1", *args.settings]
    words += [f"rounds={args.rounds}"]
    with tempfile.TemporaryDirectory() as scratch:
        plain = rounds(Path(scratch) / "plain", [*words, "evaluate_clients=0"])
        whole = rounds(Path(scratch) / "whole", [*words, "evaluate_clients=1"])
    trained = [sum(c["train-seconds"] for c in line["clients"]) / at_once for line in plain]
    ratios = [line["seconds"] / seconds for line, seconds in zip(plain, trained, strict=True)]
    print(f"{at_once} clients at once")
    print(f"training seconds of a round: median {statistics.median(trained):.2f} s")
    print(f"wall seconds of a round: median {statistics.median(r['seconds'] for r in plain):.2f} s")
    print(f"wall over training: {statistics.median(ratios):.2f} (target at most 1.08)")
    seconds = statistics.median(line["seconds"] for line in whole)
    print(f"with all eleven models evaluated: median {seconds:.2f} s (target at most 8.5)")


if __name__ == "__main__":
    main()
