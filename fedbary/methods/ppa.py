"""Population pooling: mean and variance of numbers drawn from the clients' posteriors.

The server draws N_k = ⌊draws · w_k⌋ numbers per weight from each N(m_k, v_k), at least one. It
takes the mean and the unbiased variance of all N = Σ N_k. These depend on the draws only through
their mean x̄_k and sum of squares S_k. So it draws those two in place of N_k numbers:

    x̄_k ~ N(m_k, v_k/N_k),      S_k ~ v_k χ²(N_k − 1),
    m = Σ N_k x̄_k / N,      v = (Σ S_k + Σ N_k (x̄_k − m)²) / (N − 1).

It is FKLB, the moments of the mixture, with noise that is new each round: about √(v/draws) in m,
and a part √(2/draws) of v, 4 % at the default. Deterministic tensors are averaged by size.

It assumes nothing beyond posteriors that factorise.

Messages: the posterior once each way, 2 numbers per Gaussian weight. Nothing is kept.

Cost: a client's round is the local inference; the server pays 50 ns per weight and client.

Use it to repeat the paper; FKLB for all else.

Traps of the public code: the running sum of variances is held at e⁻⁸ or more at each addition, so
variances leave their initial values by arithmetic alone. A client of a share below 1/draws is left
out.

Reference: Ozer et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA),
2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbary.aggregation.sums import LARGEST_LOG_VAR, value_limit
from fedbary.gaussian import gaussian_pairs
from fedbary.methods._method import Method, Reply, Server, Tensors, shares, weighted_mean
from fedbary.parts.parameters import Several
from fedbary.seeds import derive_seed


@dataclass(frozen=True)
class PPA(Method):
    """Population pooling (FVBA's PPA): moments of draws from the clients' posteriors.

    Parameters
    ----------
    draws : int
        Number of draws for a weight, from all clients together.
    """

    draws: Several = 1000

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Pool the draws; means end where what is admitted does, log-variances at ±39.6."""
        pairs = gaussian_pairs(server.model.keys())
        pools = {mean: _Pool(server.model[mean]) for mean in pairs}
        for reply, share in zip(replies, shares(replies), strict=True):
            rng = np.random.default_rng(derive_seed(server.seed, f"PPA/{reply.client}"))
            count = max(1, int(self.draws * share + 1e-9))
            for mean, log_var in pairs.items():
                pools[mean].add(reply.tensors[mean], reply.tensors[log_var], count, rng)
        points = [n for n in server.model if n not in pairs and n not in pairs.values()]
        found = weighted_mean(replies, points)
        for mean, log_var in pairs.items():
            drawn, found[log_var] = pools[mean].moments()
            dtype = server.model[mean].dtype
            most = min(value_limit(dtype, gaussian=True), torch.finfo(dtype).max)
            found[mean] = drawn.clamp(-most, most)
        return {name: found[name].to(like.dtype) for name, like in server.model.items()}, {}


class _Pool:
    """Count, mean and squared distances to it of what has been drawn for a tensor."""

    def __init__(self, like: Tensor) -> None:
        self._count = 0
        self._mean, self._squares = torch.zeros(2, *like.shape, dtype=torch.float64).unbind(0)

    def add(self, mean: Tensor, log_var: Tensor, count: int, rng: np.random.Generator) -> None:
        """Add so many draws of N(mean, exp(log_var))."""
        var, shape = log_var.double().exp(), tuple(mean.shape)
        drawn = torch.as_tensor(rng.standard_normal(shape))
        drawn = mean.double() + (var / count).sqrt() * drawn
        if count > 1:
            self._squares += var * torch.as_tensor(rng.chisquare(count - 1, shape))
        step, before = drawn - self._mean, self._count
        self._count += count
        self._mean += step * (count / self._count)
        self._squares += step.square() * (count * before / self._count)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of all draws."""
        log_var = (self._squares / max(1, self._count - 1)).log()
        return self._mean, log_var.clamp(-LARGEST_LOG_VAR, LARGEST_LOG_VAR)
