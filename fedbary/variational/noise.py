"""Sources of noise: `drawing` for Gaussian layers, `seeded` for all else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Generator, Tensor, nn

Source = Generator | Callable[[Tensor], Tensor]
"""A source of noise: a generator, or a function that returns noise of a tensor's shape."""

_SOURCES: ContextVar[Mapping[nn.Module, Source | None]] = ContextVar("sources")


@contextmanager
def drawing(module: nn.Module, generator: Source | None) -> Iterator[None]:
    """Let every Gaussian layer within a module draw its weights from a generator.

    Each forward pass within the block is another draw. Blocks nest: an inner block applies to its
    own module; after it the outer one applies again. A block applies in the thread that enters it,
    and changes nothing in the module. Outside of all blocks a layer uses its means.

    Parameters
    ----------
    module
        A network of any kind, or one layer.
    generator
        Source of the noise, on the module's device; None: the layers use their means. A function is
        called for every draw, in the order of the layers.
    """
    within = dict.fromkeys(module.modules(), generator)
    token = _SOURCES.set({**_SOURCES.get({}), **within})
    try:
        yield
    finally:
        _SOURCES.reset(token)


def generator_of(layer: nn.Module) -> Source | None:
    """Return a layer's present source of noise; None if it uses its means."""
    return _SOURCES.get({}).get(layer)


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed PyTorch's default generators within the block; dropout draws from them.

    Afterwards their state is restored.

    Parameters
    ----------
    seed
        The seed.
    device
        Device whose generator is seeded beside the CPU's.
    """
    device = torch.device(device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield
