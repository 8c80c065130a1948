"""Federated SGHMC: samples of the clients' posteriors at temperature 1 predict together.

From θ_g a client trains by SGD, as under FedAvg. From there it runs stochastic-gradient Hamiltonian
Monte Carlo on its own posterior exp(−U_k / T), with U_k = n_k · (mean NLL + ½ weight_decay ‖θ‖²).
With friction α and rate η a step is

    u ← (1 − α) u − η ∇U_k / n_k + √(2 α η T / n_k) z,      θ ← θ + u.

It drops 4 `thinning` steps, and takes a sample each `thinning` steps after that. The server starts
the next round from Σ_k w_k mean_t θ_kt. Predictions are the mean of those of all K · M samples.

Batches of B examples add noise. As published, with a rate that the user chooses, the chain's
temperature is T + (η/α) h n_k/(2B), with h the curvature of the mean NLL. At SGD's rates that is
many times T. So here nobody chooses the rate. The client finds the largest h where its chain
starts, and takes

    η/α = min(lr / (1 − momentum), s/h),

where s is 1 over the steps of an epoch, in which the batches' noise cancels. With 30 examples per
weight or more s is larger: `fedbary/methods/_chain.py` has the formula.

The prediction is a mixture of the clients' posteriors, each of its own data. It is wider than the
posterior of all data, and counts differences between clients as uncertainty.

It assumes that a chain reaches all of the posterior. Within `thinning` steps it forgets a direction
of curvature h/κ by about e^(−s thinning/κ). So in a network's flat directions samples lie closer
together than draws of the posterior. A larger `thinning` helps.

Messages: 1 model down, M up. Clients keep nothing.

Cost: SGD's `local_epochs`, and 32 + (4 + M) `thinning` steps more, 632 by default. A step costs
what one of SGD does and a draw of d numbers; with 30 examples per weight twice that. The server
holds K · M networks, and refuses what does not fit into half of its memory; a prediction passes all
of them.

Use it if clients' uncertainty shall be that of their posteriors, and there is time for it.

Zhang et al. run cycles of a rate that falls to 0. The last samples of such a cycle hardly move:
they had .02 to .07 of the posterior's variance. Cycles are left out.

Traps of public code: the noise for U_k/n_k lacks the root of 1/n_k, or has the size of all data in
place of the client's. Either gives a temperature that is not 1 and may be 1/n_k.

References: Chen, Fox and Guestrin, Stochastic Gradient Hamiltonian Monte Carlo, ICML 2014; Zhang
et al., Cyclical Stochastic Gradient MCMC, ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedbary.methods._chain import BURN_IN, Chain
from fedbary.methods._curvature import PROBES
from fedbary.methods._method import (
    NETWORKS,
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    require_room,
    weighted_mean,
    weights_of,
)
from fedbary.parts.parameters import Count, NotNegative, Share
from fedbary.predictive.predictor import Members


@dataclass(frozen=True)
class SGHMC(Method):
    """Samples of the clients' posteriors by SGHMC (Chen et al. 2014), for point weights.

    Parameters
    ----------
    networks : int
        M, the number of samples that a client sends.
    friction : float
        α, the friction; 1 is SGLD.
    temperature : float
        T; 1 samples the posterior, and below it predictions are surer. Mini-batches add (η/α) h
        n_k/(2 batch_size), which is little, as η is small here.
    thinning : int
        Number of the chain's steps from one sample to the next; 4 times as many come before the
        first.
    """

    networks: Count = 6
    friction: Share = 0.1
    temperature: NotNegative = 1.0
    thinning: Count = 60

    deterministic = True
    members = Members

    def passes(self, epochs: int, steps: int) -> float:
        """Return the passes of SGD, of the chain, and of the search for its step size."""
        return epochs + (2 * PROBES + (BURN_IN + self.networks) * self.thinning) / steps

    def held(self, clients: int) -> int:
        """Return how many networks the server holds."""
        return self.networks * clients

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train, then sample the client's posterior."""
        require_room("networks", self.networks, received)
        local.load(received)
        chain = Chain(local, self.friction, self.temperature)
        drawn = chain.named(chain.samples(self.networks, self.thinning))
        model = local.state()
        for name in weights_of(model):
            still = model[name].expand(self.networks, *model[name].shape)
            model[name] = drawn.get(name, still).contiguous()
        return Fitted(model, chain.path.metrics)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return a model whose weights are M, stacked."""
        stacked = {
            name: model[name].expand(self.networks, *model[name].shape).contiguous()
            for name in weights_of(model)
        }
        return {**model, **stacked}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Take the mean of the clients' mean samples, and keep all samples."""
        weights = weights_of(server.model)
        means = [
            Reply(r.client, r.weight, {**r.tensors, **{n: r.tensors[n].mean(0) for n in weights}})
            for r in replies
        ]
        state = {NETWORKS + n: torch.cat([reply.tensors[n] for reply in replies]) for n in weights}
        for name in server.model.keys() - weights:
            each = torch.stack([reply.tensors[name] for reply in replies])
            state[NETWORKS + name] = each.repeat_interleave(self.networks, 0)
        return weighted_mean(means, list(server.model)), state
