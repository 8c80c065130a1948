"""Time training on a GPU: a client's step by the plain loop, and a round by Ray's shares.

Steps are those of the papers' network with n = 3 and n = 0 Gaussian layers and of ResNet-20, on
random pixels. Rounds are those of `protocol=short`: one client after another, then by Ray with
every share of `--shares`. Each figure is printed as it is known. All of it ends after `--seconds`.

    python -m benchmarks.gpu data_dir=DATA
    python -m benchmarks.gpu device=cpu dataset=digits train_fraction=0.1 --steps 2 --shares 0
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from fedbary.inference import Local, Training, local_method
from fedbary.models import build
from fedbary.settings.config import parse_overrides, resolve
from fedbary.settings.device import torch_device

BATCH, CLASSES = 64, 10
CASES = {
    "the papers' network, n = 3": ((1, 28, 28), "cnn", 3),
    "the papers' network, n = 0": ((1, 28, 28), "cnn", 0),
    "ResNet-20, n = 1": ((3, 32, 32), "resnet20", 1),
}
"""What takes steps: an image's shape, the network, its number of Gaussian layers."""

SHARES = ("1", "0.5", "0.2", "0.1")
"""Fractions of a GPU for each client."""


def milliseconds(name: str, device: torch.device, steps: int) -> float:
    """Return the time of a step of variational inference: the least of three epochs' means."""
    shape, network, layers = CASES[name]
    model = build(network, shape, CLASSES, 0, layers, init_log_var=-5.0).to(device)
    x = torch.randint(0, 256, (BATCH * steps, *shape), dtype=torch.uint8, device=device)
    y = torch.randint(0, CLASSES, (len(x),), device=device)
    local = Local(model, x, y, training=Training(batch_size=BATCH))
    local_method("variational")(local)  # kernels load

    def epoch() -> float:
        start = time.perf_counter()
        local_method("variational")(local)  # its last line waits for the device
        return 1000 * (time.perf_counter() - start) / steps

    return min(epoch() for _ in range(3))


def round_seconds(words: list[str], limit: float) -> str:
    """Run a simulation for `limit` seconds at most, and say how long its rounds took."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch) / "run", Path(scratch) / "log"
        command = [str(Path(sys.executable).parent / "fedbary"), "simulate", f"output={folder}"]
        with log.open("w") as out:
            run = subprocess.Popen(
                [*command, *words], stdout=out, stderr=out, start_new_session=True
            )
            try:
                run.wait(max(1.0, limit))
                ending = f", and the run ended with {run.returncode}" if run.returncode else ""
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGTERM)
                run.wait()
                ending = ", until the time was over"
        file = folder / "metrics.jsonl"
        rounds = file.read_text().splitlines()[2:] if file.exists() else []  # the first one starts
        if not rounds:
            return f"none{ending}: {log.read_text().strip()[-300:]}"
        seconds = statistics.median(json.loads(line)["seconds"] for line in rounds)
        return f"{seconds:.2f} s, the median of {len(rounds)} rounds{ending}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help="key=value, such as data_dir")
    parser.add_argument("--steps", type=int, default=300, help="steps of an epoch")
    parser.add_argument("--shares", nargs="*", default=SHARES, help="shares of a GPU under Ray")
    parser.add_argument("--seconds", type=float, default=540, help="seconds for all")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    words = ["device=cuda", "dataset=fashionmnist", "protocol=short", "local_epochs=1", "rounds=4"]
    words += ["evaluate_clients=0", "pictures=false", *args.settings]
    device = torch_device(resolve(parse_overrides(words)))
    for name in CASES:
        if time.monotonic() < end:
            print(f"{name}: {milliseconds(name, device, args.steps):.2f} ms a step", flush=True)
    sides = {"one client after another": ["engine=inline"]}
    sides |= {f"Ray, {s} GPU a client": [f"gpus_per_client={s}"] for s in args.shares}
    for number, (name, own) in enumerate(sides.items()):
        limit = (end - time.monotonic()) / (len(sides) - number)
        print(f"{name}: a round {round_seconds([*words, *own], limit)}", flush=True)


if __name__ == "__main__":
    main()
