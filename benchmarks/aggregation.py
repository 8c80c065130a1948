"""Time and memory of aggregation on the server against Flower's own.

RKLB is measured against Flower's weighted mean of the same records (targets: at least 4 times
faster, and 2.5 times with every reply checked), the median and the trimmed mean, with every reply
checked, against Flower's FedMedian and FedTrimmedAvg (target: at least as fast). Both sides start
from the clients' records and end with the result's. They alternate within one run, and the median
of the ratios is printed, with the peak of extra memory in a fresh process each (target of RKLB: at
most 3 times one client's arrays).

    python -m benchmarks.aggregation [--clients 10] [--parameters 10000000] [--repeats 7]

Memory is read from Linux' /proc.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from fedbary.aggregation import rule_named
from fedbary.strategies import CONVENTIONS, RKLB, Median, TrimmedMean, aggregate_records

LAYER_SHARES = (0.4, 0.3, 0.2, 0.1)
WEIGHT = "num-examples"

Side = Callable[[list[RecordDict]], object]


def client(k: int, parameters: int) -> RecordDict:
    """Make the reply of client k: Gaussian layers of float32 means and log-variances."""
    generator = torch.Generator().manual_seed(k)
    state = {}
    for layer, share in enumerate(LAYER_SHARES):
        size = round(share * parameters)
        state[f"{layer}.weight_mean"] = torch.randn(size, generator=generator)
        state[f"{layer}.weight_log_var"] = torch.randn(size, generator=generator) - 5
    return RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord({WEIGHT: k + 1})})


def flower(replies: list[RecordDict]) -> object:
    """Aggregate as Flower's FedAvg does."""
    return aggregate_arrayrecords(replies, WEIGHT)


def ours(replies: list[RecordDict]) -> object:
    """Aggregate under RKLB."""
    records = [next(iter(reply.array_records.values())) for reply in replies]
    weights = [float(k + 1) for k in range(len(replies))]
    return aggregate_records(rule_named("RKLB"), records, weights, CONVENTIONS["fedbary"])


def step(strategy: type[FedAvg], replies: list[RecordDict]) -> object:
    """Aggregate in a strategy: its checks of the replies, arrays and metrics."""
    messages = [
        Message(
            RecordDict({"arrays": ArrayRecord({**reply["arrays"]}), "metrics": reply["metrics"]}),
            metadata=Metadata(1, "", node, 0, "", "", time.time(), 3600.0, "train"),
        )
        for node, reply in enumerate(replies)
    ]
    return strategy().aggregate_train(1, messages)


def seconds(side: Side, replies: list[RecordDict]) -> float:
    """Wall seconds of one aggregation."""
    start = time.perf_counter()
    side(replies)
    return time.perf_counter() - start


def extra_memory(side: Side, clients: int, parameters: int) -> float:
    """Peak growth of the resident memory in an aggregation, in multiples of a client's arrays."""
    replies = [client(k, parameters) for k in range(clients)]
    side([client(k, 64) for k in range(2)])
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    side(replies)
    arrays = next(iter(replies[0].array_records.values()))
    return (resident_bytes("VmHWM") - before) / arrays.count_bytes()


def resident_bytes(field: str) -> int:
    """Read this process's resident memory: VmRSS now, VmHWM at its peak since the last reset."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    size = (options.clients, options.parameters)

    mean = "Flower, aggregate_arrayrecords"
    median, trimmed = (partial(step, strategy) for strategy in (FedMedian, FedTrimmedAvg))
    theirs: dict[str, Side] = {mean: flower, "FedMedian": median, "FedTrimmedAvg": trimmed}
    compared: dict[str, tuple[Side, str]] = {
        "RKLB, aggregate_records": (ours, mean),
        "RKLB, whole step with admission": (partial(step, RKLB), mean),
        "Median, whole step": (partial(step, Median), "FedMedian"),
        "TrimmedMean, whole step": (partial(step, TrimmedMean), "FedTrimmedAvg"),
    }
    sides = theirs | {name: side for name, (side, _) in compared.items()}
    memory = {}
    for name, side in sides.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            memory[name] = pool.apply(extra_memory, (side, *size))

    replies = [client(k, options.parameters) for k in range(options.clients)]
    runs = [
        {name: seconds(side, replies) for name, side in sides.items()}
        for _ in range(options.repeats)
    ]
    print(
        f"{options.clients} clients of {options.parameters:,} Gaussian parameters, "
        f"{torch.get_num_threads()} threads, {options.repeats} alternating runs"
    )
    for name in sides:
        _, other = compared.get(name, (None, name))
        seconds_of = statistics.median(run[name] for run in runs)
        ratio = statistics.median(run[other] / run[name] for run in runs)
        print(
            f"{name:33}{seconds_of:7.3f} s, {ratio:.2f} times the speed of {other}, "
            f"{memory[name]:.2f} clients' arrays of extra memory"
        )


if __name__ == "__main__":
    main()
