"""Time a federation of a thousand clients, fifty of whom train in a round.

pfl-research's CIFAR-10 setting: 1,000 clients of 50 images, 50 a round, one local epoch; here with
the papers' network, n = 3, in one process and on one thread. Clients' work is the time in which
the ClientApp answers; the server's is the rest of a round, without the scoring of the test set,
which is told beside it. Flower's own FedAvg then drives the same ClientApp over the same nodes and
arrays, without checkpoints, metrics or scores. With more rounds it is a soak: the memory of the
process is told after each tenth of them.

    python -m benchmarks.large data_dir=DATA
    python -m benchmarks.large data_dir=DATA --rounds 500 dataset=fashionmnist
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg

import server_app
from client_app import app
from fedbary.settings.config import Settings, parse_overrides, resolve
from fedbary.tasks import task_of
from server_app.inline import InlineGrid

CLIENTS, PER_ROUND = 1000, 50
MIB = 2**20


class TimedGrid(InlineGrid):
    """A federation in this process that adds up how long its clients take."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(app, settings.clients, settings.model_dump())
        self.answering = 0.0
        self.first_training: float | None = None

    def _answer(self, message: Message) -> Message:
        start = time.perf_counter()
        if message.metadata.message_type == "train" and self.first_training is None:
            self.first_training = start
        reply = super()._answer(message)
        self.answering += time.perf_counter() - start
        return reply


class Clock:
    """Notes after every scoring how long it took, and what clients and server have spent."""

    def __init__(self, settings: Settings, grid: TimedGrid) -> None:
        self.kind, self.grid = type(task_of(settings)), grid
        self.scores, self.process = self.kind.scores, psutil.Process()
        self.rows: list[dict[str, float]] = []

    def __enter__(self) -> Clock:
        clock, then, answered = self, time.perf_counter(), self.grid.answering

        def timed(task: Any, *args: Any) -> Any:
            nonlocal then, answered
            start = time.perf_counter()
            scored = clock.scores(task, *args)
            end = time.perf_counter()
            clients = clock.grid.answering - answered
            row = {"clients": clients, "server": start - then - clients, "scoring": end - start}
            clock.rows.append({**row, "memory": clock.process.memory_info().rss / MIB})
            then, answered = end, clock.grid.answering
            return scored

        self.kind.scores = timed
        return self

    def __exit__(self, *_: object) -> None:
        self.kind.scores = self.scores


def ours(settings: Settings, folder: Path) -> None:
    """Run fedbary's apps and print what the rounds took."""
    grid = TimedGrid(settings)
    start = time.perf_counter()
    with Clock(settings, grid) as clock:
        server_app.run(grid, settings.model_copy(update={"output": str(folder)}), folder)
    assert grid.first_training is not None
    print(f"from the start to the first training: {grid.first_training - start:.1f} s")
    rounds = clock.rows[1:]
    for part in ("clients", "server", "scoring"):
        print(f"a round, {part}: median {statistics.median(row[part] for row in rounds):.2f} s")
    every = max(1, len(rounds) // 10)
    memory = [f"{row['memory']:.0f}" for row in rounds[every - 1 :: every]]
    print(f"memory of the process every {every} rounds: {', '.join(memory)} MiB")
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    size = statistics.median(len(line) for line in lines[1:])
    print(f"a round's line in metrics.jsonl: median {size / 1e3:.1f} kB")
    assert len(json.loads(lines[-1])["clients"]) == PER_ROUND


def flowers(settings: Settings) -> None:
    """Let Flower's FedAvg drive the same clients and print what it takes besides them."""
    grid, task = TimedGrid(settings), task_of(settings)
    signature = task.signature()
    arrays = ArrayRecord(task.make_model(signature).state_dict())
    strategy = FedAvg(fraction_train=PER_ROUND / CLIENTS, fraction_evaluate=0.0)
    config = ConfigRecord({**signature.config(), "num-examples": 1})
    start = time.perf_counter()
    strategy.start(grid, arrays, settings.rounds, train_config=config)
    spent = (time.perf_counter() - start - grid.answering) / settings.rounds
    print(f"Flower's FedAvg, a round, server: mean {spent:.2f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help="key=value, such as data_dir")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    words = {
        "engine": "inline", "dataset": "cifar10", "partition": "iid", "clients": CLIENTS,
        "participation": PER_ROUND / CLIENTS, "local_epochs": 1, "evaluate_clients": 0,
        "samples": 1, "device": "cpu", "rounds": args.rounds,
    }  # fmt: skip
    settings = resolve({**words, **parse_overrides(args.settings)})
    with tempfile.TemporaryDirectory() as scratch:
        ours(settings, Path(scratch) / "run")
    flowers(settings)


if __name__ == "__main__":
    main()
