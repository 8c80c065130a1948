"""Federated posterior averaging: the server steps towards the product of Gaussian posteriors.

A client runs SGD at a constant rate from θ_g. After the burn-in, the mean of each epoch's iterates
counts as a sample x_1 … x_ℓ of its posterior (iterate averaging). The samples have the mean x̄ and
the deviations A = [x_t − x̄]. With r = 1/(1 + (ℓ − 1) ρ) the shrunk covariance is C = r (I + ρ A
Aᵀ). The client sends

    Δ = C⁻¹ (θ_g − x̄) = [b − A (I/ρ + Aᵀ A)⁻¹ Aᵀ b] / r,      b = θ_g − x̄,

by an ℓ × ℓ solve, which equals the published recursion. The server follows the weighted mean of Δ.
Where this mean is 0, θ is the mode of the product of the clients' Gaussians. With one sample, or ρ
= 0, it is FedAvg's step.

It assumes that the clients' posteriors are about Gaussian, and that SGD's iterates at a constant
rate sample them. The prediction is a point.

Messages: the model once each way, as under FedAvg. Clients keep nothing.

Cost: local steps cost FedAvg's; ℓ samples are held while a client trains, and an ℓ × ℓ solve ends
it.

Use it in place of FedAvg where clients differ and make many local steps.

Reference: Al-Shedivat et al., Federated Learning via Posterior Averaging, ICLR 2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.methods._descent import Descent
from fedbary.methods._method import (
    ALONG_STEPS,
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    is_buffer,
    weighted_mean,
    weights_of,
)
from fedbary.methods._server_steps import ServerSGD
from fedbary.parts.parameters import BelowOne, NotNegative, Number, Positive


@dataclass(frozen=True)
class FedPA(Method):
    """Federated posterior averaging (Al-Shedivat et al. 2021), for point weights.

    Parameters
    ----------
    rho : float
        ρ, the weight of the samples' covariance; the paper has 0.1, and 0.01 on EMNIST.
    burn_in : int
        Number of a round's epochs before samples are taken; it must leave one.
    fedavg_rounds : int
        Number of first rounds in which clients send θ_g − θ_k, FedAvg's step. The paper's runs
        begin with 400 of 1500.
    server_lr, server_momentum : float
        Step size and momentum of the server's SGD: the paper's on EMNIST.
    """

    rho: NotNegative = 0.1
    burn_in: Number = 1
    fedavg_rounds: Number = 0
    server_lr: Positive = 0.5
    server_momentum: BelowOne = 0.9

    defaults = ALONG_STEPS
    deterministic = True

    def check(self, clients: int, epochs: int) -> None:
        """Refuse a round that leaves no epoch to sample."""
        if epochs <= self.burn_in:
            allowed = f"above burn_in, {self.burn_in}, so that an epoch is left to sample"
            raise SettingError("local_epochs", epochs, allowed)

    @property
    def _optimiser(self) -> ServerSGD:
        return ServerSGD(self.server_lr, self.server_momentum)

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Sample the client's posterior along SGD and return Δ for every parameter."""
        self.check(1, local.training.epochs)
        local.load(received)
        samples, descent = _samples(local, self.burn_in)
        if local.round <= self.fedavg_rounds:
            delta = descent.start - descent.vectors.points.value
        else:
            delta = posterior_delta(descent.start, samples, self.rho)
        state = local.state()
        for name, tensor in state.items():
            if not is_buffer(name, tensor):  # what the model does not train has no step: 0
                state[name] = received[name].to(tensor) - tensor
        return Fitted({**state, **descent.vectors.named(delta)}, descent.metrics)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Step along the mean Δ of the parameters; buffers are averaged."""
        model, state = server.model, server.state
        means = weighted_mean(replies, list(model))
        parameters = weights_of(model)
        steps, after = self._optimiser.step({name: means[name] for name in parameters}, state)
        return {**means, **{name: model[name] - steps[name] for name in parameters}}, after


def posterior_delta(start: Tensor, samples: Tensor, rho: float) -> Tensor:
    """Return Δ = C⁻¹ (start − x̄) for the shrunk covariance C of samples (ℓ, d), in their dtype.

    The inner products run in float64.
    """
    count = len(samples)
    mean = samples.mean(0)
    gap = start - mean
    if count == 1 or rho == 0:
        return gap
    deviations = samples - mean
    wide = deviations.double()
    inner = wide @ wide.t()
    inner.diagonal().add_(1 / rho)
    coefficients = torch.linalg.solve(inner, wide @ gap.double())
    shrinkage = 1 / (1 + (count - 1) * rho)
    return (gap - deviations.t() @ coefficients.to(deviations)) / shrinkage


def _samples(local: Local, burn_in: int) -> tuple[Tensor, Descent]:
    """Run SGD: the mean iterate of each epoch after the burn-in (ℓ, d), and where it has gone."""
    descent = Descent(local)
    point = descent.vectors.points.value
    steps = math.ceil(len(local.x) / local.training.batch_size)
    sums = point.new_zeros(local.training.epochs - burn_in, len(point))
    for epoch in descent:
        if epoch >= burn_in:
            sums[epoch - burn_in] += point
    return sums / steps, descent
