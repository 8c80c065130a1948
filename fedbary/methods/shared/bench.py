"""The network and examples that some methods compute with at the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Bench:
    """A server's own network and examples, which no client has.

    Parameters
    ----------
    network : nn.Module
        A network of the global model's architecture, on the examples' device; its weights do not
        matter.
    x, y : Tensor
        Inputs and targets, of no client and of no test set. Methods that need inputs alone leave y
        aside.
    nll : callable
        Mean negative log-likelihood of (outputs, targets), in nats.
    """

    network: nn.Module
    x: Tensor
    y: Tensor
    nll: Callable[[Tensor, Tensor], Tensor]
