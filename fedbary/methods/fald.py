"""FALD: one Langevin chain of all data's posterior, whose steps the clients take and average.

A round is a few steps of Langevin dynamics at every client, from the global θ, and their mean:

    θ_k ← θ_k − η ∇U_k / n_k + √(2 η T p / n_k) z_k,     θ ← Σ_k w_k θ_k,     w_k = n_k / n_round,

with U_k = n_k · (mean NLL + ½ weight_decay ‖θ‖²). The default of η is 3 `lr`, as no momentum
multiplies a step. The round's clients have n_round examples, all clients have n, and p = n_round /
n. The mean's noise has the variance Σ w_k² 2 η T p / n_k = 2 η T / n a step. That is the noise of
Langevin dynamics on U = Σ_k U_k with the step η/n. So with one local step θ is such a chain itself,
at temperature T, whoever takes part. More local steps save communication. Their bias grows with η,
with their number and with what sets the clients apart. The global networks of the last rounds
predict together.

Mini-batches of B examples add noise. With h the curvature of the mean NLL, the chain's temperature
is about T + η h n/(2 B K) for K clients per round. Drawing other clients in each round adds noise,
too. Both vanish with η.

The server tells p to the clients that it asks. A client that is asked and does not answer is
counted in p: that round's noise is then a little too large. A strategy in a Flower project of your
own does not know p; its `tell` may send `asked-examples` and `all-examples`. Without these p is 1.

It samples the posterior of all data. SGHMC and SGLD sample each client's posterior and mix them.
The networks of neighbouring rounds are similar. So the kept ones should lie apart (`thinning`), and
the first ones are dropped (`burn_in`).

It assumes many rounds, hundreds and more, and point weights.

Messages: 1 model each way. Clients keep nothing.

Cost: a local step costs SGD's and a draw of d numbers. The server keeps M networks, and refuses
what does not fit into half of its memory.

Use it where rounds are cheap and the posterior of all data is wanted, not a mixture of the
clients'.

The paper's clients count alike and average with probability 0.05 after each step. Here they count
by size, and average after every 20th step. The paper's noise that clients have in common is left
out (τ = 0): with one local step it does not change the distribution of the mean. The control
variate of VR-FALD*, for clients that differ much, is left out too.

Trap: the public code for networks multiplies gradients by the number of clients, but not the noise,
and samples at the temperature 1/K.

Reference: Plassier, Moulines and Durmus, Federated Averaging Langevin Dynamics: Toward a Unified
Theory and New Algorithms, AISTATS 2023 (arXiv 2211.00100); before it Deng, Zhang, Ma, Song and Lin,
On Convergence of Federated Averaging Langevin Dynamics, 2021 (arXiv 2112.05120).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedbary.methods._chain import Sampler
from fedbary.methods._method import (
    ALONG_STEPS,
    NETWORKS,
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    weighted_mean,
)
from fedbary.parts.parameters import Count, NotNegative, Number, Positive
from fedbary.predictive.predictor import Members


@dataclass(frozen=True)
class FALD(Method):
    """Federated averaging Langevin dynamics (Deng et al. 2021), for point weights.

    Parameters
    ----------
    networks : int
        M, the global networks that predict together.
    local_steps : int
        Steps of a client between two averages.
    burn_in : int
        Number of first rounds whose networks are not kept.
    thinning : int
        Number of rounds from one kept network to the next, after the burn-in.
    temperature : float
        T; 1 samples the posterior, if steps are so small that batches add little.
    rate_factor : float
        Ratio of η to `lr`.
    """

    networks: Count = 10
    local_steps: Count = 20
    burn_in: Number = 0
    thinning: Count = 1
    temperature: NotNegative = 1.0
    rate_factor: Positive = 3.0

    defaults = ALONG_STEPS
    deterministic = True
    members = Members
    unused = ("local_epochs", "momentum", "max_grad_norm")

    def passes(self, epochs: int, steps: int) -> float:
        """Return the round's steps over those of a pass."""
        return self.local_steps / steps

    def held(self, clients: int) -> int:
        """Return how many networks the server holds."""
        return clients + self.networks

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Take the round's steps."""
        local.load(received)
        steps_an_epoch = math.ceil(len(local.x) / local.training.batch_size)
        epochs = math.ceil(self.local_steps / steps_an_epoch)
        lr = self.rate_factor * local.training.lr
        job = replace(local, training=replace(local.training, epochs=epochs, lr=lr))
        sampler = Sampler(job, 1.0, self.temperature * local.part, steps=self.local_steps)
        for _ in sampler:
            pass
        return Fitted(local.state(), sampler.metrics)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Average the clients' networks, and keep the mean where its turn has come."""
        mean = weighted_mean(replies, list(server.model))
        after = server.round - self.burn_in
        if after < 1 or after % self.thinning:
            return mean, server.state
        held = self.predictive(server.model, server.state).members
        state = {}
        for name, tensor in mean.items():
            chain = [held[name], tensor[None]] if held else [tensor[None]]
            state[NETWORKS + name] = torch.cat(chain)[-self.networks :]
        return mean, state
