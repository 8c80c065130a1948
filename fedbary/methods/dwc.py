"""Distributed weight consolidation: the product of the clients' posteriors, the prior counted once.

Every client infers under the same prior N(m₀, v₀). So the product of K posteriors contains it K
times; the server takes K − 1 of them out,

    1/v = Σ_k 1/v_k − (K − 1)/v₀,      m = v (Σ_k m_k/v_k − (K − 1) m₀/v₀),

where a v_k above v₀ counts as v₀, because data cannot cause it. So 1/v ≥ 1/v₀. Clients are not
weighed by size, because more data already give a larger precision. Deterministic tensors are
averaged by size.

One round is exact, for any sizes, if local posteriors are exact and factorise. If features are
correlated at the clients, the mean is shifted. PVI corrects this over rounds, but sends four
numbers per weight down in place of two. Each round solves the same problem with prior=normal, from
a better initialisation. The last global posterior is the prior with prior=global, and the data of
every round count again: this is for clients with new data. The data count 1/κ times if kl_weight κ
is below 1, as everywhere.

The product of K posteriors is narrower than each of them. A client that began with these variances
would have to widen them K times in every round, and variances would fall from round to round. So
client k begins with its own part of the precision,

    1/v_start = s₀ + (s_g − s₀) n_k / n,      s₀ = 1/v₀,      s_g = 1/v,

with n the examples of the round that made v. Round 1 begins at the untrained variances, and
prior=global at the prior's, where s_g = s₀.

It assumes that local posteriors are right and factorise. Correlated features break the latter.

Messages: the posterior once each way, 2 numbers per Gaussian weight, and n. Clients keep nothing.

Cost: a client's round is plain variational inference; the server computes two sums.

Use it for one round, or few, if the prior shall count once and PVI's 4 numbers per weight are too
many.

Traps of public copies: one takes K priors out of the mean and K − 1 out of the precision; variances
are stored as standard deviations.

Reference: McClure et al., Distributed Weight Consolidation: A Brain Segmentation Case Study,
NeurIPS 2018, whose prior is a network trained before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbary.aggregation.sums import LARGEST_LOG_VAR
from fedbary.gaussian import LOG_VAR_SUFFIX, Factor, Posterior, variance_power
from fedbary.methods._method import Fitted, Local, Method, Reply, Server, Tensors, weighted_mean
from fedbary.parts.parameters import Positive

_EXAMPLES = "counted/examples"
"""The entry of the state with the examples of the last round that counted."""


@dataclass(frozen=True)
class DWC(Method):
    """Distributed weight consolidation (McClure et al. 2018): posteriors times, priors out of, all.

    Parameters
    ----------
    prior : str
        normal: N(0, prior_std²) in every round. global: the last global posterior from the second
        round on.
    prior_std : float
        Standard deviation of the prior N(0, prior_std²).
    """

    prior: Literal["normal", "global"] = "normal"
    prior_std: Positive = 1.0

    def send(self, server: Server, client: str) -> Tensors:
        """Return the global posterior and, once a round has counted, that round's examples."""
        return {**server.model, **server.state}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Infer under the round's prior."""
        prior = self._prior(received, received)
        local.load({**received, **_begun(prior, received, len(local.x))})
        metrics = local.infer(prior)
        return Fitted(local.state(), metrics)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Multiply the posteriors, and take out all priors but one; log-variances end at ±39.6."""
        prior = self._prior(_wide(server.model), server.state)
        product = prior ** (1.0 - len(replies))
        for reply in replies:
            product = product * _within(prior, Factor.of(_gaussians(_wide(reply.tensors))))
        points = [name for name in Posterior.from_state_dict(server.model).mean
                  if name in server.model]  # fmt: skip
        found = product.posterior(weighted_mean(replies, points)).state_dict()
        for name in found:
            if name.endswith(LOG_VAR_SUFFIX):
                found[name] = found[name].clamp(-LARGEST_LOG_VAR, LARGEST_LOG_VAR)
        model = {name: found[name].to(like.dtype) for name, like in server.model.items()}
        examples = sum(reply.weight for reply in replies)
        return model, {_EXAMPLES: torch.tensor(float(examples))}

    def _prior(self, tensors: Tensors, state: Tensors) -> Factor:
        """Return the prior of a round that starts from a state dict; until one counted, N(0, ·)."""
        start = _gaussians(tensors)
        if self.prior == "global" and _EXAMPLES in state:
            return Factor.of(start)
        return Factor.normal(self.prior_std, start.log_var)


def _begun(prior: Factor, received: Tensors, examples: int) -> Tensors:
    """Return the log-variances from which a client of so many examples begins."""
    if _EXAMPLES not in received:
        return {}
    part = min(1.0, examples / float(received[_EXAMPLES]))
    found = {}
    for name, log_var in _gaussians(_wide(received)).log_var.items():
        least = prior.precision[name].double()
        own = (variance_power(log_var, -1) - least).clamp_min(0) * part
        found[name + LOG_VAR_SUFFIX] = -(least + own).log()
    return found


def _gaussians(tensors: Tensors) -> Posterior:
    """Return the Gaussian tensors of a state dict."""
    posterior = Posterior.from_state_dict(tensors)
    return Posterior({name: posterior.mean[name] for name in posterior.log_var}, posterior.log_var)


def _wide(tensors: Tensors) -> Mapping[str, Tensor]:
    return {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}


def _within(prior: Factor, factor: Factor) -> Factor:
    """Return a factor whose precisions are at least the prior's, its means as they are."""
    precision = {n: s.maximum(prior.precision[n]) for n, s in factor.precision.items()}
    shift = {n: e * precision[n] / factor.precision[n] for n, e in factor.shift.items()}
    return Factor(shift, precision)
