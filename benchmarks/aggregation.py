"""Time and memory of RKLB on the server against Flower's own weighted mean of the same records.

Both sides start from the clients' records and end with the result's. They alternate within one
run, and the median of the ratios is printed (target: at least 2 times faster), with the peak of
extra memory in a fresh process each (target: at most 3 times one client's arrays). A third line
times the strategy's whole step, which also checks every reply.

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
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from fedbary.aggregation import rule_named
from strategies import CONVENTIONS, RKLB, aggregate_records

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


def step(replies: list[RecordDict]) -> object:
    """Aggregate under RKLB in the strategy: admission, order, arrays and metrics."""
    messages = [
        Message(reply, metadata=Metadata(1, "", node, 0, "", "", time.time(), 3600.0, "train"))
        for node, reply in enumerate(replies)
    ]
    return RKLB().aggregate_train(1, messages)


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

    sides: dict[str, Side] = {
        "Flower, aggregate_arrayrecords": flower,
        "RKLB, aggregate_records": ours,
        "RKLB, whole step with admission": step,
    }
    memory = {}
    for name, side in sides.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            memory[name] = pool.apply(extra_memory, (side, *size))

    replies = [client(k, options.parameters) for k in range(options.clients)]
    times = [[seconds(side, replies) for side in sides.values()] for _ in range(options.repeats)]
    print(
        f"{options.clients} clients of {options.parameters:,} Gaussian parameters, "
        f"{torch.get_num_threads()} threads, {options.repeats} alternating runs"
    )
    for i, name in enumerate(sides):
        median = statistics.median(run[i] for run in times)
        ratio = statistics.median(run[0] / run[i] for run in times)
        print(
            f"{name:33}{median:7.3f} s, {ratio:.2f} times Flower's speed, "
            f"{memory[name]:.2f} clients' arrays of extra memory"
        )


if __name__ == "__main__":
    main()
