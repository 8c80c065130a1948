"""FedBE: a Bayesian ensemble around the clients' networks, and one network distilled from it.

Clients train point weights θ_k from θ_g by SGD. The server takes the weighted mean
m = Σ_k w_k θ_k and draws networks,

    Gaussian:    θ ~ N(m, Σ_k w_k (θ_k − m)²), weight by weight,
    Dirichlet:   θ = Σ_k γ_k w_k θ_k / Σ_k γ_k w_k,   γ ~ Dirichlet(concentration, …),

and the ensemble is these, the clients' networks and m. Its prediction is the mean of theirs
(Bayesian model averaging). A student starts from m and learns the ensemble's answers to the
server's inputs, without labels. Its targets are ∝ p^{1/T}, and the last iterates of its SGD are
averaged. The next round starts from the student. The ensemble predicts by default
(`predictive=members`); the student does with `predictive=montecarlo`.

It assumes that the spread of the clients' networks around their mean is uncertainty, and that the
server has inputs like the clients' (`server_fraction`).

Messages: the model once each way, as under FedAvg. Clients keep nothing.

Cost: a client's round is FedAvg's. The server holds K + `draws` + 1 networks and distils for
`distil_epochs` a round; 0 leaves distillation out, needs no examples, and starts rounds from m. A
prediction passes the whole ensemble.

Use it under label skew, if the server has inputs.

Paper and public code differ; this follows the paper. The code draws from a Gaussian of normalised
differences per tensor, with a tenth of their spread, and leaves w out of the Dirichlet. Traps of
that code: it does not run as published; T = ½, the default here too, sharpens targets and so spoils
calibration (T = 1 does not). The paper distils on some 10,000 inputs. With a few hundred, no
iterates are averaged, and the student is the last one.

Reference: Chen and Chao, FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning,
ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Generator, Tensor

from fedbary.methods._bench import bench_of
from fedbary.methods._conditions import one_class
from fedbary.methods._distil import Distillation, distilled
from fedbary.methods._method import (
    NETWORKS,
    Method,
    Reply,
    Server,
    Tensors,
    shares,
    weighted_mean,
    weights_of,
)
from fedbary.methods.fedag import fit_gaussian, stacked
from fedbary.parts.parameters import Count, Number, Positive
from fedbary.predictive.networks import drawn, unstacked
from fedbary.predictive.predictor import Members
from fedbary.seeds import derive_seed


@dataclass(frozen=True)
class FedBE(Method):
    """Bayesian model ensemble with distillation (Chen and Chao 2021), for point weights.

    Parameters
    ----------
    ensemble : str
        Distribution that networks are drawn from: gaussian or dirichlet.
    draws : int
        Number of networks drawn in addition to the clients' and their mean.
    concentration : float
        Concentration of the Dirichlet; with a larger one draws lie closer to the mean.
    distil_epochs : int
        Passes of the student over the server's inputs a round; 0: no student.
    distil_lr : float
        Step size of its SGD with momentum 0.9.
    distil_batch_size : int
        Inputs a step.
    distil_temperature : float
        T of the student's targets p^(1/T).
    """

    ensemble: Literal["gaussian", "dirichlet"] = "gaussian"
    draws: Number = 10
    concentration: Positive = 1.0
    distil_epochs: Number = 20
    distil_lr: Positive = 0.001
    distil_batch_size: Count = 128
    distil_temperature: Positive = 0.5

    deterministic = True
    members = Members
    conditions = (one_class,)
    needs_bench = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "needs_bench", self.distil_epochs > 0)

    def held(self, clients: int) -> int:
        """Return how many networks the server holds."""
        return clients + self.draws + 1

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Make the ensemble, and distil it."""
        mean = weighted_mean(replies, list(server.model))
        names = weights_of(server.model)
        clients = stacked([reply.tensors for reply in replies])
        generator = Generator().manual_seed(derive_seed(server.seed, "fedbe"))
        found = {name: t.expand(self.draws, *t.shape) for name, t in mean.items()}
        found |= self._drawn({n: clients[n] for n in names}, shares(replies), generator)
        networks = {n: torch.cat([clients[n], mean[n][None], found[n]]) for n in mean}
        state = {NETWORKS + name: tensor for name, tensor in networks.items()}
        if not self.distil_epochs:
            return mean, state
        how = Distillation(
            self.distil_epochs, self.distil_batch_size, self.distil_lr,
            sharpness=1 / self.distil_temperature,
        )  # fmt: skip
        seed = derive_seed(server.seed, "distil")
        student = distilled(bench_of(server), mean, unstacked(networks), how, seed)
        return {**mean, **student}, state

    def _drawn(
        self, clients: Tensors, weights: Sequence[float], generator: Generator
    ) -> dict[str, Tensor]:
        """Draw networks, (draws, *shape) by name, of the clients', (K, *shape)."""
        if self.ensemble == "gaussian":
            gaussian = fit_gaussian(clients, weights, "population")
            return drawn(gaussian, self.draws, generator)
        rng = np.random.default_rng(generator.initial_seed())
        gammas = rng.dirichlet([self.concentration] * len(weights), self.draws)
        parts = torch.from_numpy(gammas) * torch.tensor(weights, dtype=torch.float64)
        parts = parts / parts.sum(1, keepdim=True)
        return {
            name: torch.tensordot(parts, tensor.double(), 1).to(tensor.dtype)
            for name, tensor in clients.items()
        }
