"""FedHB: clients' networks are draws from a Gaussian that the server learns (NIW).

A hierarchy per weight: (μ, Σ) ~ NIW(0, λ, s² I, d + 2), a normal-inverse-Wishart, θ_k ~ N(μ, Σ),
and client k's data from θ_k. With q(μ, Σ) = NIW(m₀, V₀, l₀, n₀) and spikes q_k = p N(m_k, ε²) +
(1 − p) N(0, ε²), coordinate descent on the ELBO of N clients is

    client:  min over m_k of E[NLL_k] + κ (p/2) n₀ Σ (m_k − m₀)² / V₀,    each weight 0 with 1 − p
    server:  m₀ = p Σ m_k / (N + λ),    l₀ = N + λ,    n₀ = N + d + 2
             V₀ = s² + N ε² + λ m₀² + Σ_k (p m_k² − 2 p m₀ m_k + m₀²).

That is FedProx with a metric that the server learns. Here d = 1: each weight has a NIW of its own.
With one NIW for all weights, d in n₀ would be their number. Predictions for everybody are drawn
from the Student t of θ, N + 3 degrees of freedom and scale² V₀ (l₀ + 1)/(l₀ n₀), here a Gaussian of
its variance. A client's own model is its network fitted anew, from m₀ with the precision (n₀ + d +
2)/V₀, when it is scored.

It assumes that the clients' networks scatter about a common one, as draws from a Gaussian.

Messages: m₀ and V₀ down, 2 numbers per weight, m_k up, as under FedAvg. Clients keep nothing.

Cost: a round costs as much as FedAvg's. If clients are scored (`evaluate_clients`), they train once
more. The server keeps V₀.

Use it where clients are many and each differs a little.

Traps: the paper's s = κ = λ = 1 did not work. The table is for digits, with ten clients of some 130
images, 20 rounds of 5 epochs and seed 0. The columns are the validation accuracy of draws for
everybody, and that of clients' own models on what they hold out:

    s = κ = λ = 1                  12 %, 81 %    λ draws m₀ to 0, by N/(N + 1) a round
    s = κ = 1, λ = 0.01            10 %, 95 %    draws have a std of 0.3 per weight; m₀ has 92 %
    s = 0.1, κ = 1, λ = 0.01       10 %, 19 %    clients do not leave m₀
    s = 0.1, κ = 0.01, λ = 1       38 %, 75 %
    s = 0.1, κ = 0.01, λ = 0.01    94 %, 95 %    the defaults: with κ = s² the pull is the paper's

N counts only the clients of the round.

Reference: Kim and Hospedales, FedHB: Hierarchical Bayesian Federated Learning, 2023 (arXiv
2305.04979); no public code was found. The formulas were derived anew and checked as the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.gaussian import Posterior
from fedbary.inference._steps import Vectors
from fedbary.methods._method import (
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    weighted_mean,
    weights_of,
)
from fedbary.methods._sites import Pull, fit_near, packed
from fedbary.parts.parameters import Positive, Share
from fedbary.predictive import Predictive

_VAR, _CLIENTS = "niw/var/", "niw/clients"


@dataclass(frozen=True)
class FedHB(Method):
    """A normal-inverse-Wishart over the clients' networks (Kim and Hospedales 2023).

    Parameters
    ----------
    prior_std : float
        s of the prior NIW(0, λ, s² I, d + 2); the paper has 1.
    prior_weight : float
        κ, the weight of the prior at a client, beside its summed NLL; the paper has 1.
    prior_clients : float
        λ, the number of clients that the prior counts for in m₀, which it draws to 0; the paper has
        1.
    keep : float
        p, the probability that a client's weight is not 0.
    spike_std : float
        ε, the standard deviation of a client's spikes.
    """

    prior_std: Positive = 0.1
    prior_weight: Positive = 0.01
    prior_clients: Positive = 0.01
    keep: Share = 0.999
    spike_std: Positive = 0.0001

    deterministic = True
    draws_around = True

    def start(self, model: Tensors) -> Tensors:
        """Return V₀ = s² for every weight, and that no client counts yet."""
        var = {_VAR + n: torch.full_like(model[n], self.prior_std**2) for n in weights_of(model)}
        return {**var, _CLIENTS: torch.zeros((), dtype=torch.float64)}

    def send(self, server: Server, client: str) -> Tensors:
        """Return m₀ with V₀ and N."""
        return {**server.model, **server.state}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train near m₀ with the precision p n₀ / V₀."""
        metrics = self._fit(local, received, self.keep * (float(received[_CLIENTS]) + 3))
        return Fitted(local.state(), metrics)

    def personal(self, local: Local, received: Tensors, kept: Tensors) -> Predictive | None:
        """Train a network of the client's own under the prior N(m₀, V₀ / (n₀ + d + 2))."""
        self._fit(local, received, float(received[_CLIENTS]) + 6)
        return Predictive(local.state())

    def _fit(self, local: Local, received: Tensors, strength: float) -> dict[str, float]:
        def pull(q: Vectors) -> Pull:
            centre = packed(q, received)
            var = packed(q, {name: received[_VAR + name] for name in q.point_names})
            return lambda _: (centre, self.prior_weight * strength / var)

        local.load(received)
        return fit_near(local, pull, self.keep)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Set m₀ and V₀ to their optimum given the clients' networks; buffers are averaged."""
        model, weights, clients = server.model, weights_of(server.model), len(replies)
        after = weighted_mean(replies, [name for name in model if name not in weights])
        state = {_CLIENTS: torch.tensor(float(clients), dtype=torch.float64)}
        for name in weights:
            networks = torch.stack([reply.tensors[name].double() for reply in replies])
            mean, var = self.optimum(networks)
            after[name], state[_VAR + name] = mean.to(model[name]), var.to(model[name])
        return {name: after[name] for name in model}, state

    def optimum(self, networks: Tensor) -> tuple[Tensor, Tensor]:
        """Return m₀ and V₀ given the clients' m_k (N, *shape), in float64."""
        clients, p = len(networks), self.keep
        mean = p * networks.sum(0) / (clients + self.prior_clients)
        spread = p * networks.square() - 2 * p * mean * networks + mean.square()
        own = self.prior_std**2 + clients * self.spike_std**2
        return mean, own + self.prior_clients * mean.square() + spread.sum(0)

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return Gaussians with the mean and the variance of θ's Student t."""
        clients = float(state[_CLIENTS]) if state else 0.0
        l0, n0 = clients + self.prior_clients, clients + 3
        wide = (l0 + 1) / (l0 * n0) * n0 / (n0 - 2)
        log_var = {
            name: (state[_VAR + name].double() * wide).log().clamp_min(-39).to(model[name])
            for name in weights_of(model)
            if state
        }
        return Predictive(model, Posterior(model, log_var))
