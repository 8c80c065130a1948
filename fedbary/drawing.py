"""Where the layers of a module take their noise from: `with drawing(module, generator): ...`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Generator, nn

_GENERATORS: ContextVar[Mapping[nn.Module, Generator | None]] = ContextVar("generators")


@contextmanager
def drawing(module: nn.Module, generator: Generator | None) -> Iterator[None]:
    """Let every Gaussian layer within a module draw its weights from a generator.

    Each forward pass within the block is another draw. Blocks nest: an inner one holds for its own
    module, and the outer one is back after it. A block holds in the thread that enters it, and
    leaves nothing in the module. Outside of every block a layer's weights are their means.

    Parameters
    ----------
    module
        A network of any kind, or one layer.
    generator
        Source of the noise, on the module's device; None for the network of the means.
    """
    within = dict.fromkeys(module.modules(), generator)
    token = _GENERATORS.set({**_GENERATORS.get({}), **within})
    try:
        yield
    finally:
        _GENERATORS.reset(token)


def generator_of(layer: nn.Module) -> Generator | None:
    """Return the generator that a layer draws from now; None if its weights are their means."""
    return _GENERATORS.get({}).get(layer)
