"""Helpers of methods that learn at the server: the bench's examples in batches, the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Generator, Tensor

from fedbary.data.batches import scale_pixels
from fedbary.methods._method import Bench, Reply, Server
from fedbary.methods._sites import one_thread
from fedbary.predictive.networks import evaluation


def bench_of(server: Server) -> Bench:
    """Return the server's bench; a strategy has seen to it that there is one."""
    assert server.bench is not None
    return server.bench


@contextmanager
def at_work(bench: Bench) -> Iterator[torch.device]:
    """Let the bench's network be in evaluation mode, and sums run in one order; give its device."""
    with one_thread(), evaluation(bench.network):
        yield bench.x.device


def batches(
    bench: Bench, epochs: int, batch_size: int, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (indices, inputs as the network takes them, targets) in an order drawn from a seed."""
    order = Generator().manual_seed(seed)
    for _ in range(epochs):
        for indices in torch.randperm(len(bench.x), generator=order).split(batch_size):
            here = indices.to(bench.x.device)
            yield indices, scale_pixels(bench.x[here]), bench.y[here]


def stacked(replies: Sequence[Reply], names: Sequence[str], device: torch.device) -> Tensor:
    """Return each reply's tensors of those names as a row, (K, d), in float32 or finer."""
    rows = [torch.cat([r.tensors[name].flatten().to(device) for name in names]) for r in replies]
    return torch.stack(rows)
