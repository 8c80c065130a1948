"""The steps of several clients that train side by side: batches, crops and noise, in tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Generator, Tensor

from fedbary.data.batches import inputs
from fedbary.inference._stacked import Call
from fedbary.inference.shared.vectors import Batches
from fedbary.variational.noise import drawing

MOST_STEPS, MOST_BYTES = 256, 2**28
"""The most steps that a table has, and the most bytes of its noise."""


@dataclass(frozen=True)
class Slot:
    """A draw that the network asks for in every step.

    Parameters
    ----------
    shape, stride
        Those of the noise for a full batch.
    per_example
        Entries of the first axis that belong to an example; 0 for noise that all share.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    per_example: int


def slots_of(call: Call) -> list[Slot]:
    """Return the draws of a step, found by asking the network for one example and for two."""
    asked: list[list[Tensor]] = []
    for count in (1, 2):
        found: list[Tensor] = []

        def noise(like: Tensor, found: list[Tensor] = found) -> Tensor:
            found.append(like)
            return torch.zeros_like(like)

        with torch.no_grad(), drawing(call.model, noise):
            call.model(inputs(call.x[:1].expand(count, *call.x.shape[1:])))
        asked.append(found)
    slots = []
    for one, two in zip(*asked, strict=True):
        if one.shape == two.shape:
            slots.append(Slot(tuple(one.shape), one.stride(), 0))
        else:
            shape = (call.training.batch_size * one.shape[0], *one.shape[1:])
            slots.append(Slot(shape, torch.empty(shape, device="meta").stride(), one.shape[0]))
    return slots


@dataclass(frozen=True, eq=False)
class StepTable:
    """The inputs of T steps of K clients; step t is row t.

    Parameters
    ----------
    indices, crops
        Indices of images, in those of all clients one after another, and their crops: (T, K, B).
    labels, weights
        Their labels; 1 over the batch's size, or 0 where the batch is filled up: (T, K, B).
    counted
        The size of the batch in a client's last epoch, 0 before: (T, K).
    rates
        The rates of the log-variances: (T,).
    noise
        For each slot (T, K, *shape).
    """

    indices: Tensor
    crops: Tensor
    labels: Tensor
    weights: Tensor
    counted: Tensor
    rates: Tensor
    noise: tuple[Tensor, ...]

    @property
    def tensors(self) -> list[Tensor]:
        """Return all of them."""
        named = [getattr(self, field.name) for field in fields(self)]
        return [*named[:-1], *named[-1]]


class Schedule:
    """The steps of clients, most steps first, in tables.

    Parameters
    ----------
    calls
        The clients' rounds; those with the most examples first.
    rate
        The rate of the log-variances in a step, counted from 1.
    dtype
        Type of weights, rates and noise.

    Attributes
    ----------
    steps : list of int
        Number of steps of each client.
    size : int
        Number of steps of a table.
    """

    def __init__(
        self, calls: Sequence[Call], rate: Callable[[int], float], dtype: torch.dtype
    ) -> None:
        self.rate, self.dtype, self.device = rate, dtype, calls[0].x.device
        self.labels = torch.cat([call.y for call in calls])
        self.slots = slots_of(calls[0])
        starts = torch.tensor([0, *(len(call.x) for call in calls)]).cumsum(0).tolist()
        self.clients = [_Client(call, start) for call, start in zip(calls, starts, strict=False)]
        self.steps = [client.steps for client in self.clients]
        numbers = sum(math.prod(slot.shape) for slot in self.slots)
        bytes_a_step = max(1, numbers * len(calls) * dtype.itemsize)
        self.size = max(1, min(MOST_STEPS, MOST_BYTES // bytes_a_step, self.steps[0]))

    def tables(self) -> Iterator[StepTable]:
        """Yield the tables one after another; the last may have fewer rows."""
        for first in range(0, self.steps[0], self.size):
            yield self._table(first, min(self.size, self.steps[0] - first))

    def _table(self, first: int, count: int) -> StepTable:
        taken = [client.take(count) for client in self.clients]
        indices, crops, counted = (
            torch.stack(parts, 1).to(self.device) for parts in zip(*taken, strict=True)
        )
        is_there = indices >= 0
        indices = indices.clamp_(min=0)
        weights = is_there.to(self.dtype)
        weights /= weights.sum(-1, keepdim=True).clamp_(min=1)
        rates = [self.rate(step) for step in range(first + 1, first + count + 1)]
        sizes = [(part[0] >= 0).sum(-1).tolist() for part in taken]
        return StepTable(
            indices,
            crops,
            self.labels[indices],
            weights,
            counted.to(self.dtype),
            torch.tensor(rates, dtype=self.dtype, device=self.device),
            self._noise(count, sizes),
        )

    def _noise(self, count: int, sizes: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
        """Draw every client's noise, step by step in the layers' order, as the network would."""
        tables = []
        for slot in self.slots:
            numbers, clients = math.prod(slot.shape), len(sizes)
            memory = torch.zeros(count * clients * numbers, dtype=self.dtype, device=self.device)
            stride = (clients * numbers, numbers, *slot.stride)
            tables.append(memory.as_strided((count, clients, *slot.shape), stride))
        for number, client in enumerate(self.clients):
            rows = [table[:, number].unbind() for table in tables]
            for step, size in enumerate(sizes[number]):
                for slot, row in zip(self.slots, rows, strict=True) if size else ():
                    drawn = row[step][: size * slot.per_example] if slot.per_example else row[step]
                    drawn.normal_(generator=client.noise)
        return tuple(tables)


class _Client:
    """The batches of a client, as rows of as many indices as a full batch has, −1 for none."""

    def __init__(self, call: Call, start: int) -> None:
        batches = Batches(call.x, call.y, call.training, call.seed, call.augment)
        self.noise: Generator = batches.noise
        self.epochs, self.start, self.size = batches.epochs(), start, call.training.batch_size
        in_epoch = math.ceil(len(call.x) / self.size)
        self.steps = in_epoch * call.training.epochs
        self.last_epoch = self.steps - in_epoch
        self.taken = 0
        self.ready = torch.empty(2, 0, self.size, dtype=torch.int64)

    def take(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return indices and crops (count, B), and what counts of each step (count,)."""
        parts, held = [self.ready], self.ready.shape[1]
        while held < count and (epoch := next(self.epochs, None)) is not None:
            rows = torch.stack([epoch[0] + self.start, epoch[1]])
            rows = torch.nn.functional.pad(rows, (0, -rows.shape[1] % self.size), value=-1)
            parts.append(rows.unflatten(1, (-1, self.size)))
            held += parts[-1].shape[1]
        if held < count:
            parts.append(parts[0].new_full((2, count - held, self.size), -1))
        whole = torch.cat(parts, 1)
        found, self.ready = whole[:, :count], whole[:, count:]
        counted = (found[0] >= 0).sum(-1)
        counted[: max(0, self.last_epoch - self.taken)] = 0
        self.taken += count
        return found[0], found[1].clamp(min=0), counted
