"""Time a federation of many clients, few of whom train in a round.

The default is pfl-research's CIFAR-10 setting: 1,000 clients of 50 images, 50 a round, one local
epoch; here with the papers' network, n = 3, in one process and on one thread. Clients' work is the
time in which the ClientApp answers. The server's is the rest of a round, without the scoring of the
test set, which is told beside it. Flower's own FedAvg then drives the same ClientApp over the same
nodes and arrays, without checkpoints, metrics or scores. Rounds are told in CPU seconds, which
other programs on the machine change little. With more rounds it is a soak: the memory of the
process is told after each tenth of them. Where pfl-research is installed (``pip install pfl``) its
FedAvg trains the same network without Gaussians on the same parts. Its round holds the clients'
work, and is to be compared with both parts of ours under `rule=FedAvg bayesian_layers=0`.

    python -m benchmarks.large data_dir=DATA
    python -m benchmarks.large data_dir=DATA --clients 10000 --per-round 100 min_examples=1
    python -m benchmarks.large data_dir=DATA --rounds 500 dataset=fashionmnist
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbary import server_app
from fedbary.client_app import app
from fedbary.data.batches import scale_pixels
from fedbary.data.sites import site_from
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import Settings, parse_overrides, resolve
from fedbary.strategies.method_strategy import METHOD_KEY
from fedbary.tasks import task_of

MIB = 2**20


def per_round(settings: Settings) -> int:
    """Return the number of clients that train in a round."""
    return settings.participants


class TimedGrid(InlineGrid):
    """A federation in this process that adds up how long its clients take."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(app, settings.clients, settings.model_dump())
        self.answering = 0.0
        self.first_training: tuple[float, float] | None = None

    def _answer(self, message: Message) -> Message:
        if message.metadata.message_type == "train" and self.first_training is None:
            self.first_training = time.perf_counter(), time.process_time()
        start = time.process_time()
        reply = super()._answer(message)
        self.answering += time.process_time() - start
        return reply


class Clock:
    """Notes after every scoring how long it took, and what clients and server have spent."""

    def __init__(self, settings: Settings, grid: TimedGrid) -> None:
        self.kind, self.grid = type(task_of(settings)), grid
        self.scores, self.process = self.kind.scores, psutil.Process()
        self.rows: list[dict[str, float]] = []

    def __enter__(self) -> Clock:
        clock, then, answered = self, time.process_time(), self.grid.answering

        def timed(task: Any, *args: Any) -> Any:
            nonlocal then, answered
            start = time.process_time()
            scored = clock.scores(task, *args)
            end = time.process_time()
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
    start = time.perf_counter(), time.process_time()
    with Clock(settings, grid) as clock:
        server_app.run(grid, settings.model_copy(update={"output": str(folder)}), folder)
    assert grid.first_training is not None
    wall, cpu = (then - now for then, now in zip(grid.first_training, start, strict=True))
    print(f"from the start to the first training: {wall:.1f} s, {cpu:.1f} CPU s")
    rounds = clock.rows[1:]
    for part in ("clients", "server", "scoring"):
        print(f"a round, {part}: median {statistics.median(row[part] for row in rounds):.2f} CPU s")
    every = max(1, len(rounds) // 10)
    memory = [f"{row['memory']:.0f}" for row in rounds[every - 1 :: every]]
    print(f"memory of the process every {every} rounds: {', '.join(memory)} MiB")
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    size = statistics.median(len(line) for line in lines[1:])
    print(f"a round's line in metrics.jsonl: median {size / 1e3:.1f} kB")
    assert len(json.loads(lines[-1])["clients"]) == per_round(settings)


def flowers(settings: Settings) -> None:
    """Let Flower's FedAvg drive the same clients and print what it takes besides them."""
    grid, task = TimedGrid(settings), task_of(settings)
    signature = task.signature()
    arrays = ArrayRecord(task.make_model(signature).state_dict())
    strategy = FedAvg(fraction_train=per_round(settings) / settings.clients, fraction_evaluate=0.0)
    config = ConfigRecord({**signature.config(), "num-examples": 1, METHOD_KEY: settings.method})
    start = time.process_time()
    result = strategy.start(grid, arrays, settings.rounds, train_config=config)
    assert result.train_metrics_clientapp, "no client has trained"
    spent = (time.process_time() - start - grid.answering) / settings.rounds
    print(f"Flower's FedAvg, a round, server: mean {spent:.2f} CPU s")


def pfls(settings: Settings) -> None:
    """Let pfl-research's simulation train FedAvg on the same parts and print what a round takes."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    task = task_of(settings.model_copy(update={"rule": "FedAvg", "bayesian_layers": 0}))
    signature = task.signature()

    class Network(torch.nn.Module):
        """The network with the loss and the metrics that pfl-research asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.network = task.make_model(signature)

        def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
            self.train(not is_eval)
            return cross_entropy(self.network(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
            return {}

    def part(user: int) -> Dataset:
        shard = task.shard(
            site_from({"partition-id": user, "num-partitions": settings.clients}), signature
        )
        return Dataset(raw_data=[scale_pixels(shard.x), shard.y], user_id=str(user))

    network, by = Network(), settings.local
    model = PyTorchModel(
        network,
        local_optimizer_create=partial(torch.optim.SGD, momentum=by.momentum),
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    users = FederatedDataset(part, MinimizeReuseUserSampler(list(range(settings.clients))))
    start = time.process_time()
    FederatedAveraging().run(
        NNAlgorithmParams(settings.rounds, settings.rounds + 1, per_round(settings), None),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(by.batch_size, by.local_epochs, by.lr),
        send_metrics_to_platform=False,
    )
    spent = (time.process_time() - start) / settings.rounds
    print(f"pfl-research's FedAvg, a round, clients and server: mean {spent:.2f} CPU s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help="key=value, such as data_dir")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--per-round", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    words = {
        "engine": "inline", "dataset": "cifar10", "partition": "iid", "clients": args.clients,
        "participation": args.per_round / args.clients, "local_epochs": 1, "evaluate_clients": 0,
        "samples": 1, "device": "cpu", "rounds": args.rounds,
    }  # fmt: skip
    settings = resolve({**words, **parse_overrides(args.settings)})
    with tempfile.TemporaryDirectory() as scratch:
        ours(settings, Path(scratch) / "run")
    flowers(settings)
    if find_spec("pfl"):
        pfls(settings)


if __name__ == "__main__":
    main()
