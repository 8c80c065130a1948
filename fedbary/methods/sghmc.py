"""Federated SGHMC: samples of the clients' posteriors at temperature 1 predict together.

From θ_g a client runs stochastic-gradient Hamiltonian Monte Carlo on its own posterior, exp(−U_k),
U_k = n_k · (mean NLL + ½ weight_decay ‖θ‖²), with rate η (`lr` by default), friction α, temperature
T:

    u ← (1 − α) u − η ∇U_k / n_k + √(2 α η T / n_k) z,      θ ← θ + u,

in cycles of a rate that falls to 0 as a cosine; the last epochs of each have noise, and samples are
taken at equal distances among their steps. The server starts the next round from Σ_k w_k mean_t
θ_kt; predictions are the mean of those of all K · M samples.

The mixture is of the clients' posteriors, each of its own data: it is wider than the posterior of
all data, and counts what sets the clients apart as uncertainty. The rate is of a whole step, so
that friction 0.1 goes with SGD's rates at momentum 0.9.

It assumes that a chain of a round reaches what it samples: short rounds sample around θ_g.

What travels: 1 model down, M up. Clients keep nothing.

What it costs: a step costs what one of SGD does and a draw of d numbers. The server holds K · M
networks, and refuses what does not fit into half of its memory; a prediction passes all of them.

Use it where a posterior of more than one mode is to be seen.

Traps of public code: noise for U_k/n_k without the root of 1/n_k in it, or with the size of all
data in place of the client's, samples at a temperature that is not 1 and may be 1/n_k.

References: Chen, Fox and Guestrin, Stochastic Gradient Hamiltonian Monte Carlo, ICML 2014; Zhang
et al., Cyclical Stochastic Gradient MCMC, ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedbary.methods._descent import weights_of
from fedbary.methods._langevin import Sampler, samples
from fedbary.methods._method import (
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    weighted_mean,
)
from fedbary.methods._ranges import not_negative, part, positive, whole
from fedbary.methods._room import require_room

_NETWORKS = "networks/"


@dataclass(frozen=True)
class SGHMC(Method):
    """Samples of the clients' posteriors by SGHMC (Chen et al. 2014), for point weights.

    Parameters
    ----------
    networks : int
        M, the samples that a client sends, from 1.
    friction : float
        α, above 0 to 1; 1 is SGLD.
    temperature : float
        T, from 0; 1 samples the posterior, below it predictions are surer.
    rate_factor : float
        η is `lr` times this, above 0.
    cycles : int
        Cosines of the rate in a round, fewer if that leaves one no epoch without noise; 0 for a
        constant rate.
    noisy_epochs : int
        The last epochs of a cycle, which have noise and give samples; from 1, and fewer in rounds
        that leave none before them.

    Raises
    ------
    SettingError
        If a parameter is out of its range.
    """

    networks: int = 6
    friction: float = 0.1
    temperature: float = 1.0
    rate_factor: float = 1.0
    cycles: int = 1
    noisy_epochs: int = 2

    unused = ("momentum", "max_grad_norm")
    samples_along = True
    deterministic = True

    def __post_init__(self) -> None:
        whole(self, 1, "networks", "noisy_epochs")
        whole(self, 0, "cycles")
        part(self, "friction")
        positive(self, "rate_factor")
        not_negative(self, "temperature")

    def held(self, clients: int) -> int:
        """Return how many networks the server holds."""
        return self.networks * clients

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Sample the client's posterior."""
        require_room("networks", self.networks, received)
        local.load(received)
        training = replace(local.training, lr=self.rate_factor * local.training.lr)
        job = replace(local, training=training)
        cycles = min(self.cycles, max(1, training.epochs // (self.noisy_epochs + 1)))
        noisy = min(self.noisy_epochs, max(1, training.epochs - 1)) if cycles else self.noisy_epochs
        sampler = Sampler(job, self.friction, self.temperature, cycles, noisy)
        drawn = sampler.named(samples(sampler, self.networks))
        model = local.state()
        for name in weights_of(model):
            still = model[name].expand(self.networks, *model[name].shape)
            model[name] = drawn.get(name, still).contiguous()
        return Fitted(model, sampler.metrics)

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
        state = {_NETWORKS + n: torch.cat([reply.tensors[n] for reply in replies]) for n in weights}
        for name in server.model.keys() - weights:
            each = torch.stack([reply.tensors[name] for reply in replies])
            state[_NETWORKS + name] = each.repeat_interleave(self.networks, 0)
        return weighted_mean(means, list(server.model)), state

    def members(self, model: Tensors, state: Tensors) -> Tensors:
        """Return the clients' samples of the last round that counted, client by client."""
        return {
            name.removeprefix(_NETWORKS): tensor
            for name, tensor in state.items()
            if name.startswith(_NETWORKS)
        }
