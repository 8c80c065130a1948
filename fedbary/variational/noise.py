"""Where noise comes from: Gaussian layers draw as `drawing` says, all else as `seeded` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Generator, Tensor, nn

Source = Generator | Callable[[Tensor], Tensor]
"""Where noise comes from: a generator, or a function that gives a tensor the noise of its shape."""

_SOURCES: ContextVar[Mapping[nn.Module, Source | None]] = ContextVar("sources")


@contextmanager
def drawing(module: nn.Module, generator: Source | None) -> Iterator[None]:
    """Let every Gaussian layer within a module draw its weights from a generator.

    Each forward pass within the block is another draw. Blocks nest: an inner one holds for its own
    module, and the outer one is back after it. A block holds in the thread that enters it, and
    leaves nothing in the module. Outside of every block a layer's weights are their means.

    Parameters
    ----------
    module
        A network of any kind, or one layer.
    generator
        Source of the noise, on the module's device; None for the network of the means. A function
        is called for every draw, in the layers' order.
    """
    within = dict.fromkeys(module.modules(), generator)
    token = _SOURCES.set({**_SOURCES.get({}), **within})
    try:
        yield
    finally:
        _SOURCES.reset(token)


def generator_of(layer: nn.Module) -> Source | None:
    """Return what a layer draws from now; None if its weights are their means."""
    return _SOURCES.get({}).get(layer)


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Let PyTorch's default generators, of which dropout draws, start from a seed within the block.

    Afterwards they are as they were.

    Parameters
    ----------
    seed
        The seed.
    device
        The device whose generator is meant beside the CPU's.
    """
    device = torch.device(device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield
