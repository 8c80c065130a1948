"""pFedVem: a head of each client's own, which pulls the global one by how confident it is.

The head is the network's Gaussian tensors, with θ_k ~ N(m_g, ρ_k² I); the base, its deterministic
ones, is common. A client's round, by variational EM:

    M:      ρ_k² = mean over the head's weights of v_k + (m_k − m_g)²
    E:      head: `head_steps` steps on all its examples of mean NLL + kl/n_k KL(q_k ‖ N(m_g, ρ_k²))
    base:   the round's epochs of mini-batches, the head drawn and left as it is

It sends the base, m_k and ρ_k². The server averages the base by size. It averages the head by
confidence, not by size: m_g = Σ m_k ρ_k⁻² / Σ ρ_k⁻².

Predictions use the means, without draws: a client's own head on the base as it trained it, the
global head on the global base. New clients start from the run's initial variances (`init_log_var`;
the paper's σ = 1 is 0).

It assumes that a client's head differs from the global one by the same amount in each weight.

Messages: the model down, of which the head's variances never change; its means and a number up, as
under FedAvg. A client keeps m_k and v_k of the head, and the base that it trained last.

Cost: a round costs the base's epochs and `head_steps` passes over the client's examples.

Use it where clients' classes differ.

Traps of the public code: it trains all clients each round and draws those that are averaged. It
sums the loss over the examples at a fixed rate, which diverges if they are many (here the loss is a
mean, as everywhere, and the rate the run's). Its 1/ρ² is unbounded, so a client whose head equals
the global one decides it alone. Here ρ_k² is held above `least_rho`². In the code ρ_k is that from
before the E step, as here. Its head's biases are Gaussian; here they are points, and belong to the
base.

Reference: Zhu, Ma and Blaschko, Confidence-aware Personalized Federated Learning via Variational
Expectation Maximization, CVPR 2023; the code read is JunyiZhu-AI/confidence_aware_PFL.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedbary.gaussian import LOG_VAR_SUFFIX, MEAN_SUFFIX, Factor, Posterior
from fedbary.methods._method import Fitted, Local, Method, Reply, Server, Tensors, weighted_mean
from fedbary.parts.parameters import Count, Positive
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Members
from fedbary.seeds import derive_seed

RHO = "head/log_rho_squared"
"""The entry of a reply that says how far the client's head is from the global one."""

HEAD = "head/mean/"
"""The prefix of the names of m_k in a reply."""


@dataclass(frozen=True)
class pFedVem(Method):
    """A head of each client's own, averaged by its confidence (Zhu, Ma and Blaschko 2023).

    Parameters
    ----------
    head_steps : int
        Number of the head's steps a round, each on all of a client's examples.
    least_rho : float
        Least value of ρ_k; public code has no bound.
    """

    head_steps: Count = 10
    least_rho: Positive = 0.001

    unused = ("prior", "prior_std")
    remembers = True
    members = Members

    def passes(self, epochs: int, steps: int) -> float:
        """Return the base's passes and the head's."""
        return epochs + self.head_steps

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Set ρ_k, train the head, then the base."""
        heads = _heads(received)
        both = {name + end for name in heads for end in (MEAN_SUFFIX, LOG_VAR_SUFFIX)}
        local.load({**received, **{name: kept[name] for name in both & kept.keys()}})
        before = Posterior.from_state_dict(local.state())
        anchor = {name: received[name + MEAN_SUFFIX].to(before.mean[name]) for name in heads}
        rho_squared = max(squared_rho(before, anchor), self.least_rho**2)
        with _only(local.model, both):
            metrics = self._fit_head(local, anchor, rho_squared)
        named = local.model.named_parameters()
        if points := {name for name, p in named if p.requires_grad} - both:
            with _only(local.model, points):
                metrics = replace(local, seed=derive_seed(local.seed, "base")).infer(1.0)
        state = local.state()
        rho = torch.tensor(math.log(rho_squared), dtype=torch.float64)
        return Fitted({**_means(state), RHO: rho}, metrics, state)

    def _fit_head(self, local: Local, anchor: Tensors, rho_squared: float) -> dict[str, float]:
        """Infer the head under N(m_g, ρ_k²), on all examples at once."""
        precision = {n: torch.full_like(mean, 1 / rho_squared) for n, mean in anchor.items()}
        prior = Factor({n: s * anchor[n] for n, s in precision.items()}, precision).posterior()
        whole = replace(local.training, epochs=self.head_steps, batch_size=len(local.x))
        return replace(local, training=whole, seed=derive_seed(local.seed, "head")).infer(prior)

    def personal(self, local: Local, received: Tensors, kept: Tensors) -> Predictive | None:
        """Return the client's head on the base that it trained, predicting by the means."""
        return Predictive(_without_draws(kept)) if kept else None

    def reply_like(self, model: Tensors) -> Tensors:
        """Return the means of the model, and the number ρ_k²."""
        return {**_means(model), RHO: torch.zeros((), dtype=torch.float64)}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Average the base by size, and the heads by their confidence."""
        names = list(_means(server.model))
        heads = [name for name in names if name.startswith(HEAD)]
        log_rho = [max(float(r.tensors[RHO]), 2 * math.log(self.least_rho)) for r in replies]
        confident = [
            Reply(reply.client, math.exp(min(log_rho) - mine), reply.tensors)
            for reply, mine in zip(replies, log_rho, strict=True)
        ]
        after = weighted_mean(replies, [name for name in names if name not in heads])
        for name, mean in weighted_mean(confident, heads).items():
            after[name.removeprefix(HEAD) + MEAN_SUFFIX] = mean
        return {name: after.get(name, tensor) for name, tensor in server.model.items()}, {}

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the global model without draws, the only one."""
        members = {name: tensor[None] for name, tensor in _without_draws(model).items()}
        return Predictive(model, members=members)


def squared_rho(head: Posterior, anchor: Tensors) -> float:
    """Return ρ², the mean over a head's weights of v + (m − m_g)²: KL(q ‖ N(m_g, ρ² I)) is least.

    Parameters
    ----------
    head
        q, with a log-variance for each tensor of the head.
    anchor
        m_g by the tensors' names.
    """
    total = count = 0.0
    for name, log_var in head.log_var.items():
        gap = head.mean[name].double() - anchor[name].double()
        total += float((log_var.double().exp() + gap.square()).sum())
        count += log_var.numel()
    return total / count


def _heads(state: Tensors) -> list[str]:
    return list(Posterior.from_state_dict(state).log_var)


def _means(state: Tensors) -> dict[str, Tensor]:
    """Return the base by its names, and the head's means."""
    posterior = Posterior.from_state_dict(state)
    return {HEAD + n if n in posterior.log_var else n: t for n, t in posterior.mean.items()}


def _without_draws(state: Tensors) -> dict[str, Tensor]:
    """Return a model whose draws are its means, but for 1e-9."""
    scales = {name + LOG_VAR_SUFFIX for name in _heads(state)}
    return {n: torch.full_like(t, -40.0) if n in scales else t for n, t in state.items()}


@contextmanager
def _only(model: nn.Module, names: set[str]) -> Iterator[None]:
    """Let only parameters of these names be trained within the block."""
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names and before[name])
    try:
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])
