"""Time training on a GPU: the plain loop, captured steps, clients side by side; then a whole run.

For the papers' network on Fashion-MNIST's shapes, n = 3 and n = 0, and ResNet-20 on CIFAR-10's,
ten clients of the sizes of protocol=paper's partition (random pixels): milliseconds of a client's
step by the plain loop, by captured steps of one client after another, and by all clients side by
side, with and without capture; how far the models end apart, over how far they have moved, after
one epoch without TF32; memory. Then protocol=paper on Fashion-MNIST, evaluation included, until
its end or `--run-seconds`, with what the whole takes at that pace, and what the plain loop takes.

Each figure is printed as soon as it is known, and written to $OUT/gpu.jsonl where OUT is set. At
most ten minutes on a GPU. On a CPU it shows that it works:

    python -m benchmarks.gpu data_dir=DATA
    python -m benchmarks.gpu device=cpu --share 0.01 --epochs 1 --run-seconds 0
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from fedbary.data.partition import partition
from fedbary.inference import PosteriorParameters, Training, local_method
from fedbary.inference._side_by_side import TrainedState, fit
from fedbary.inference._stacked import Call
from fedbary.parts.parameters import told
from fedbary.settings.config import Settings, parse_overrides, resolve
from fedbary.settings.device import torch_device
from fedbary.settings.task_words import OfImages
from fedbary.tasks._network import network

CLASSES = 10

CASES: Mapping[str, tuple[tuple[int, int, int], int, dict[str, Any]]] = {
    "Fashion-MNIST, n = 3": ((1, 28, 28), 60_000, {"bayesian_layers": 3}),
    "Fashion-MNIST, n = 0": ((1, 28, 28), 60_000, {"bayesian_layers": 0, "rule": "FedAvg"}),
    "CIFAR-10, ResNet-20, n = 1": (
        (3, 32, 32),
        50_000,
        {"model": "resnet20", "bayesian_layers": 1, "inference": "variational", "augment": True},
    ),
}
"""What is timed: an image's shape, how many there are, and settings beside protocol=paper's."""


def say(**figures: Any) -> None:
    """Print figures, and add them to $OUT/gpu.jsonl."""
    line = json.dumps(figures)
    print(line, flush=True)
    if out := os.environ.get("OUT"):
        with open(Path(out) / "gpu.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")


def calls_of(
    settings: Settings, shape: tuple[int, int, int], images: int, epochs: int
) -> list[Call]:
    """Return what each client of the partition asks of its local method."""
    device = torch_device(settings)
    labels = np.repeat(np.arange(CLASSES), images // CLASSES)
    own = dict(settings.partition_parameters)
    parts = partition(labels, settings.partition, settings.clients, 0, **own)
    model = network(settings, shape, CLASSES, 0)
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    of_posterior = told(PosteriorParameters, settings)
    training = Training(
        epochs=epochs,
        batch_size=of_posterior.batch_size,
        lr=of_posterior.lr,
        momentum=of_posterior.momentum,
        weight_decay=of_posterior.weight_decay,
        max_grad_norm=of_posterior.max_grad_norm,
        log_var_lr=of_posterior.log_var_lr,
        kl_weight=float(of_posterior.kl_weight),
    )
    calls = []
    for number, part in enumerate(parts):
        x = torch.randint(256, (len(part), *shape), dtype=torch.uint8).to(device)
        y = torch.from_numpy(labels[part]).to(device)
        augment = told(OfImages, settings).augment is True
        calls.append(
            Call(model, x, y, training=training, seed=number, augment=augment, start=state)
        )
    return calls


def plain(name: str, calls: Sequence[Call]) -> list[TrainedState]:
    """Let clients train one after another by the local method itself."""
    found = []
    for call in calls:
        call.load(call.start)
        metrics = local_method(name)(call)
        found.append((call.state(), metrics))
    return found


def timed(device: torch.device, work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that work takes, and what it returns."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    found = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, found


def apart(
    calls: Sequence[Call], one: Sequence[TrainedState], other: Sequence[TrainedState]
) -> float:
    """Return the largest ‖θ − θ'‖ / ‖θ − θ₀‖ of a client."""

    def norm(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
        return math.sqrt(sum(float((a[k] - b[k]).double().square().sum()) for k in a))

    return max(
        norm(a, b) / norm(a, call.start)
        for call, (a, _), (b, _) in zip(calls, one, other, strict=True)
    )


def steps_of(calls: Sequence[Call]) -> int:
    """Return how many steps clients take in all."""
    of_each = (math.ceil(len(c.x) / c.training.batch_size) * c.training.epochs for c in calls)
    return sum(of_each)


def case(label: str, words: Mapping[str, Any], share: float, epochs: int) -> float:
    """Time one case; return the plain loop's seconds of a client's step."""
    shape, images, own = CASES[label]
    settings = resolve({"protocol": "paper", **words, **own})
    device, name = torch_device(settings), settings.inference
    calls = calls_of(settings, shape, int(images * share), 1)
    longer = [replace(call, training=replace(call.training, epochs=epochs)) for call in calls]
    few = min(2, len(calls))
    sides: dict[str, tuple[Sequence[Call], Callable[[Sequence[Call]], list[TrainedState]]]] = {
        "plain": (calls, lambda c: plain(name, c)),
        "side by side": (longer, lambda c: fit(name, c, capture=False)),
    }
    if device.type == "cuda":
        sides["captured, one by one"] = (
            longer[:few],
            lambda c: [f for call in c for f in fit(name, [call])],
        )
        sides["captured, side by side"] = (longer, lambda c: fit(name, c))
    torch.backends.cudnn.allow_tf32 = False
    exact = plain(name, calls)
    for side, (_, train) in sides.items():
        some = calls[:few] if "one by one" in side else calls
        say(case=label, side=side, apart=apart(some, exact[: len(some)], train(some)))
    torch.backends.cudnn.allow_tf32 = True
    seconds: dict[str, float] = {}
    for side, (asked, train) in sides.items():
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        took, _ = timed(device, lambda train=train, asked=asked: train(asked))  # type: ignore[misc]
        seconds[side] = took / steps_of(asked)
        memory = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None
        times = seconds["plain"] / seconds[side]
        say(case=label, side=side, ms_a_step=1e3 * seconds[side], times=times, mib=memory)
    return seconds["plain"]


def kernels(label: str, words: Mapping[str, Any], share: float) -> None:
    """Print where the GPU's time goes in steps side by side."""
    shape, images, own = CASES[label]
    settings = resolve({"protocol": "paper", **words, **own})
    calls = calls_of(settings, shape, int(images * share), 1)
    with torch.profiler.profile() as profile:
        fit(settings.inference, calls, capture=False)
    by = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    print(profile.key_averages().table(sort_by=by, row_limit=15, max_name_column_width=60))


def whole(words: Mapping[str, Any], limit: float, plain_step: float) -> None:
    """Run protocol=paper for so many seconds at most, and say what all of it takes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, file = Path(scratch) / "run", Path(scratch) / "settings.yaml"
        own = {"dataset": "fashionmnist", "protocol": "paper", "engine": "inline"}
        settings = resolve({**own, "pictures": False, "output": str(folder), **words})
        file.write_text(yaml.safe_dump(settings.model_dump()), encoding="utf-8")
        start = time.perf_counter()
        run = subprocess.Popen([sys.executable, "-m", "server_app.engine.inline", str(file)])
        try:
            run.wait(limit)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()
        took = time.perf_counter() - start
        metrics = folder / "metrics.jsonl"
        written = metrics.read_text().splitlines() if metrics.exists() else []
    lines = [json.loads(line) for line in written]
    done = lines[1:]
    trained = [sum(client["train-seconds"] for client in line["clients"]) for line in done]
    every = sum(line["seconds"] for line in done) / max(1, len(done))
    training = sum(trained) / max(1, len(done))
    by = told(PosteriorParameters, settings)
    steps = by.local_epochs * sum(
        math.ceil(client["num-examples"] / by.batch_size)
        for client in (done[-1]["clients"] if done else [])
    )
    say(
        run="protocol=paper",
        rounds=len(done),
        ended=run.returncode == 0,
        seconds=took,
        seconds_a_round=every,
        of_them_training=training,
        all_rounds_at_this_pace=settings.rounds * every,
        plain_loop_all_rounds=settings.rounds * (every - training + steps * plain_step),
        accuracy=lines[-1]["accuracy"] if lines else None,
    )


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help="key=value, such as data_dir")
    parser.add_argument("--share", type=float, default=1.0, help="part of the images in a case")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of what is not the loop")
    parser.add_argument("--run-seconds", type=float, default=400, help="of the run; 0 for none")
    parser.add_argument("--kernels", action="store_true", help="print where a step's time goes")
    args = parser.parse_args(words)
    given = parse_overrides(args.settings)
    torch.backends.cudnn.deterministic = True
    torch.set_num_threads(1)
    say(device=str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "CPU")
    step = {label: case(label, given, args.share, args.epochs) for label in CASES}
    if args.kernels:
        kernels(next(iter(CASES)), given, args.share)
    if args.run_seconds:
        whole(given, args.run_seconds, step[next(iter(CASES))])


if __name__ == "__main__":
    main()
