"""Server optimisers: what a server makes of the clients' mean step, on named tensors.

A round's pseudo-gradient is Δ = θ − θ̄, where θ̄ is the clients' mean of what began at θ; a method
may make another. An optimiser says how far the server goes along −Δ. Scales of Gaussians and
buffers are no parameters: leave them out of Δ.

Reference: Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.aggregation import RULES
from fedbary.aggregation.arriving import Change, along
from fedbary.methods._method import (
    Arrival,
    Method,
    Reply,
    Server,
    Tensors,
    is_buffer,
    weighted_mean,
    weights_of,
)
from fedbary.parts.parameters import BelowOne, Checked, Positive


@dataclass(frozen=True)
class ServerSGD(Checked):
    """Gradient descent with heavy-ball momentum: u ← β u + Δ, θ ← θ − lr u.

    With lr = 1 and β = 0 the server takes the clients' mean; with lr = 1 it is FedAvgM (Hsu, Qi
    and Brown 2019).

    Parameters
    ----------
    lr : float
        Part of the step that the server goes.
    momentum : float
        β; the clients' progress is multiplied by up to 1/(1 − β).
    """

    lr: Positive = 1.0
    momentum: BelowOne = 0.0

    def step(self, gradient: Tensors, state: Tensors) -> tuple[dict[str, Tensor], Tensors]:
        """Return the step lr u of every tensor of the gradient, and the state after it.

        Parameters
        ----------
        gradient
            Δ by name.
        state
            The state that the last step returned; {} before the first.
        """
        velocity = {
            name: torch.add(delta, state[name], alpha=self.momentum) if name in state else delta
            for name, delta in gradient.items()
        }
        return {n: self.lr * u for n, u in velocity.items()}, velocity if self.momentum else {}


@dataclass(frozen=True)
class ServerAdam(Checked):
    """FedAdam: m ← β₁ m + (1 − β₁) Δ, v ← β₂ v + (1 − β₂) Δ², θ ← θ − lr m / (√v + τ).

    As published there is no correction of the first steps' bias; Flower's FedAdam has one.

    Parameters
    ----------
    lr, beta1, beta2, tau : float
        The paper's defaults but for lr, which it tunes for every task.
    """

    lr: Positive = 0.01
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Positive = 1e-3

    def step(self, gradient: Tensors, state: Tensors) -> tuple[dict[str, Tensor], Tensors]:
        """Return the step of every tensor of the gradient, and the state; as `ServerSGD.step`."""
        steps: dict[str, Tensor] = {}
        after: dict[str, Tensor] = {}
        for name, delta in gradient.items():
            zero = torch.zeros_like(delta)
            first = self.beta1 * state.get(f"first/{name}", zero) + (1 - self.beta1) * delta
            second = state.get(f"second/{name}", zero) * self.beta2
            second = second + (1 - self.beta2) * delta.square()
            steps[name] = self.lr * first / (second.sqrt() + self.tau)
            after |= {f"first/{name}": first, f"second/{name}": second}
        return steps, after


def stepped(
    optimiser: ServerSGD | ServerAdam, model: Tensors, means: Tensors, state: Tensors
) -> tuple[dict[str, Tensor], Tensors]:
    """Return a model after a step towards the clients' means, and the state.

    Log-variances and buffers are those of the means.
    """
    names = weights_of(model)
    steps, after = optimiser.step({name: model[name] - means[name] for name in names}, state)
    return {**means, **{name: model[name] - steps[name] for name in names}}, after


class SteppedMethod(Method, ABC):
    """Federated averaging with an optimiser at the server, in rounds or as replies arrive."""

    deterministic = True

    @property
    @abstractmethod
    def optimiser(self) -> ServerSGD | ServerAdam:
        """The optimiser, which makes a step of a pseudo-gradient."""

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the model after a step of the optimiser."""
        means = weighted_mean(replies, list(server.model))
        return stepped(self.optimiser, server.model, means, server.state)

    def arrive(self, server: Server, arrivals: Sequence[Arrival]) -> tuple[Tensors, Tensors]:
        """Take the replies' weighted changes for the mean step, as FedBuff does.

        A change is a gradient, however old.
        """
        moved = along_points(server.model, arrivals)
        return stepped(self.optimiser, server.model, moved, server.state)


def along_points(model: Tensors, arrivals: Sequence[Arrival]) -> Tensors:
    """Return point weights after the changes of replies to models of any age; buffers are mixed."""
    changes = [Change(each.sent, each.tensors, each.part) for each in arrivals]
    buffers = [name for name, tensor in model.items() if is_buffer(name, tensor)]
    return along(RULES["FedAvg"], model, changes, buffers)
