"""What some methods compute with at the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Bench:
    """What a server has to compute with: a network, and examples that are nobody else's.

    Parameters
    ----------
    network : nn.Module
        Of the global model's architecture, on the examples' device; what it holds does not matter.
    x, y : Tensor
        Inputs and targets, of no client and of no test set. Who needs inputs alone leaves y aside.
    nll : callable
        Mean negative log-likelihood of (outputs, targets), in nats.
    """

    network: nn.Module
    x: Tensor
    y: Tensor
    nll: Callable[[Tensor, Tensor], Tensor]
