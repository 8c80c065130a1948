"""Several clients' local inference at once, side by side on one device.

A step of a small network leaves a GPU waiting for the launch of the next kernel. Here the networks
of K clients are one. Their tensors are stacked, (K, …), and a vmap of the network takes K batches.
One set of kernels does the work of K. On a GPU the step is captured as a CUDA graph, which takes
one launch. Images, batches and noise lie on the device before they are needed.

Each client takes the steps that the local method alone would let it take, with its own batches,
crops and noise, from its own seed. The longest come first, and who has taken all steps leaves; a
batch that is not full is filled up with examples of weight 0. The results are those of the local
method, to rounding.

A local method that can be done so names its update `UPDATE`, which its own `fit` uses too.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd

from fedbary.data.batches import batch_source, inputs
from fedbary.inference._schedule import Schedule, StepTable
from fedbary.inference._stacked import Call, StackedPosterior, first_rows
from fedbary.variational.adapters import TRUNCATED
from fedbary.variational.noise import drawing

WARM_UP = 3
"""Steps that run before one is captured, so that libraries have what they allocate at first."""

TrainedState = tuple[dict[str, Tensor], dict[str, float]]
"""The network's state dict after the training, and the metrics of the fit."""


def hindrance(name: str, calls: Sequence[Call]) -> str:
    """Return why calls of a local method cannot be answered side by side; "" if they can."""
    alike = {(replace(call.training, kl_weight=0.0), call.augment) for call in calls}
    network = calls[0].model
    if _update_of(name) is None:
        return f"inference={name} is for one client at a time"
    if len(alike) > 1:
        return "they train in different ways"
    if any(call.nll is not functional.cross_entropy for call in calls):
        return "their loss is not the cross-entropy"
    if len(list(network.named_parameters(remove_duplicate=False))) > len(
        list(network.parameters())
    ):
        return "the network has tied weights"
    if any(getattr(call.model, TRUNCATED, False) for call in calls):
        return "adapters have ranks that differ"
    if any(True for _ in network.buffers()):
        return "the network has buffers, as batch norm's"
    if any(isinstance(part, _DropoutNd) and part.p > 0 for part in network.modules()):
        return "the network has dropout"
    return ""


def fit(name: str, calls: Sequence[Call], capture: bool = True) -> list[TrainedState]:
    """Answer calls of a local method side by side.

    Parameters
    ----------
    name
        The local method.
    calls
        One of each client, for which there is no `hindrance`.
    capture
        True: steps on a GPU are captured.

    Returns
    -------
    list
        For each call the state dict after it, and the method's metrics, beside them the client's
        part of the time in `train_seconds`.

    Raises
    ------
    RuntimeError
        If the network does what a vmap does not take, or the device has too little memory.
    """
    start = time.perf_counter()
    order = sorted(range(len(calls)), key=lambda number: -len(calls[number].x))
    clients = [calls[number] for number in order]
    calls[0].model.train()
    together = _Together(name, clients, capture)
    together.train()
    kl, mean_nll = together.update.finish().tolist(), together.mean_nll.tolist()
    parameters = together.stack.parameters()
    seconds = (time.perf_counter() - start) / sum(together.schedule.steps)
    found: dict[int, TrainedState] = {}
    for row, (number, call) in enumerate(zip(order, clients, strict=True)):
        own = {part: tensor[row].detach().clone() for part, tensor in parameters.items()}
        metrics = {"train_nll": mean_nll[row], "kl": kl[row]}
        taken = together.schedule.steps[row]
        found[number] = {**call.start, **own}, {**metrics, "train_seconds": seconds * taken}
    return [found[number] for number in range(len(calls))]


class _Together:
    """Clients at work, those with the most examples first."""

    def __init__(self, name: str, calls: Sequence[Call], capture: bool) -> None:
        self.device, training = calls[0].x.device, calls[0].training
        plain = copy.deepcopy(calls[0].model)
        self.network = plain.to(memory_format=torch.contiguous_format)
        self.stack = StackedPosterior(self.network, calls)
        scales = [[call.training.kl_weight / len(call.x)] for call in calls]
        self.update = _update_of(name)(self.stack, training, self.stack.mean.new_tensor(scales))
        self.schedule = Schedule(calls, self.update.rate, self.stack.mean.dtype)
        self.take = batch_source(torch.cat([call.x for call in calls]), calls[0].augment)
        self.nll = self.stack.mean.new_zeros(len(calls))
        self.sizes = self.stack.mean.new_tensor([len(call.x) for call in calls])
        self.capture = capture and self.device.type == "cuda"
        self.row = torch.zeros(1, dtype=torch.int64, device=self.device)

    @property
    def mean_nll(self) -> Tensor:
        """Each client's mean loss of its last epoch, (K,), in nats."""
        return self.nll / self.sizes

    def train(self) -> None:
        """Take all steps; the next table is prepared while a GPU works on this one."""
        tables, aside = self.schedule.tables(), _Aside(self.device)
        here: StepTable | None = None
        live, do, taken = 0, _nothing, 0
        with aside:
            coming = next(tables, None)
        while coming is not None:
            aside.join(coming.tensors)
            if here is None:
                here = coming
            for held, new in zip(here.tensors, coming.tensors, strict=True):
                held[: len(new)].copy_(new)
            self.row.zero_()
            for _ in range(len(coming.rates)):
                still = sum(steps > taken for steps in self.schedule.steps)
                if still != live:
                    live, do = still, self._doing(here, still)
                do()
                taken += 1
            with aside:
                coming = next(tables, None)

    def _doing(self, table: StepTable, live: int) -> Callable[[], None]:
        """Return what takes a step of the first clients, that of the row where `row` is."""
        update, nll = first_rows(self.update, live), self.nll[:live]
        stack: StackedPosterior = update.q
        parameters, held = stack.parameters(), first_rows(self.stack.held, live)

        def answer(own: dict[str, Tensor], images: Tensor, noise: tuple[Tensor, ...]) -> Tensor:
            drawn = iter(noise)
            with drawing(self.network, lambda like: next(drawn)) if noise else nullcontext():
                outputs: Tensor = functional_call(self.network, own, (images,))
            return outputs

        def here(tensor: Tensor) -> Tensor:
            return tensor[:, :live].index_select(0, self.row).squeeze(0)

        def step() -> None:
            stack.points.grad.zero_()
            update.begin()
            indices, weights = here(table.indices), here(table.weights)
            images = inputs(self.take(indices.flatten(), here(table.crops).flatten()))
            noise = tuple(here(part) for part in table.noise)
            own = {**parameters, **held}
            outputs = vmap(answer)(own, images.unflatten(0, indices.shape), noise)
            losses = functional.cross_entropy(
                outputs.flatten(0, 1), here(table.labels).flatten(), reduction="none"
            )
            mean = (losses.view(weights.shape) * weights).sum(1)
            leaves = list(parameters.values())
            stack.add_gradients(torch.autograd.grad(mean.sum(), leaves, materialize_grads=True))
            nll.addcmul_(mean.detach(), here(table.counted))
            update.end(table.rates.index_select(0, self.row))
            self.row.add_(1)

        return _Captured(step) if self.capture else step


class _Captured:
    """A step that a GPU takes: some times as it is, then as a graph of all its kernels."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step, self.taken = step, 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.taken == WARM_UP:
            self.graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.stream(self.stream):
                self.graph.capture_begin()
                try:
                    self.step()
                finally:
                    self.graph.capture_end()
        self.taken += 1
        if self.graph is not None:
            self.graph.replay()
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.step()
        torch.cuda.current_stream().wait_stream(self.stream)


class _Aside:
    """A stream of a GPU beside the one that trains; on a CPU nothing."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        self.block: Any = None

    def __enter__(self) -> None:
        self.block = torch.cuda.stream(self.stream) if self.stream else nullcontext()
        self.block.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.block.__exit__(*raised)

    def join(self, tensors: Sequence[Tensor]) -> None:
        """Let the work that follows wait for the stream, which made these tensors."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream())


def _nothing() -> None:
    """Take no step."""


def _update_of(name: str) -> Any:
    return getattr(import_module(f"fedbary.inference.{name}"), "UPDATE", None)
