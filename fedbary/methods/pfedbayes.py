"""pFedBayes: each client's own posterior, held near a global one that follows the clients'.

With mean losses, a client minimises over its own posterior q_k, which it keeps, and over its copy
v_k of the global posterior v, in turns,

    q_k:  E_q[mean NLL] + ζ/n_k · KL(q_k ‖ v_k),          v_k:  KL(q_k ‖ v_k),

and sends v_k. The server takes v ← (1 − β) v + β Σ w_k v_k on means and on ρ, σ = softplus(ρ). Each
v_k starts from v every round. After each epoch it takes one Adam step for every `steps_per_global`
steps of q_k. The run's local inference trains q_k, with a new optimiser state each epoch (the code
keeps both states). The paper gives the objective only in general form. Details are from unofficial
code, whose 20 · 5 steps per round and rates are the defaults here.

The exact global step (`global_step=exact`): clients send q_k, and v ← the forward-KL barycentre of
these with equal weights, which is argmin_v Σ_k KL(q_k ‖ v). With ζ = 1 that is EM of a model with
random effects, and v its marginal-likelihood optimum. Clients then reveal q_k.

A client's own predictions are drawn from q_k, those for everybody from v. Deterministic tensors are
averaged by size; a client's own model has those that it trained last.

It assumes that clients differ as draws from one Gaussian do.

Messages: the model down, v_k up (2 numbers per Gaussian weight each). A client keeps q_k (2).

Cost: a round costs what the local inference costs, and one step of 2 numbers per weight for every
five.

Use it where clients' labels differ and each has enough of its own.

Traps: if clients moved v_k all the way to q_k and the server took plain means of variances, v would
shrink to nothing. The public code draws with a standard deviation of 0.001 whatever ρ says, divides
the KL by the number of steps, and leaves β unused.

Reference: Zhang et al., Personalized Federated Learning via Variational Bayesian Inference, ICML
2022; the code read is AllenBeau/pFedBayes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedbary.aggregation import aggregate
from fedbary.gaussian import LOG_VAR_SUFFIX, MEAN_SUFFIX, Posterior
from fedbary.methods._method import Fitted, Local, Method, Reply, Server, Tensors, weighted_mean
from fedbary.parts.parameters import Count, Positive, Share
from fedbary.predictive import Predictive
from fedbary.seeds import derive_seed


@dataclass(frozen=True)
class pFedBayes(Method):
    """A posterior of each client's own near a global one (Zhang et al. 2022).

    Parameters
    ----------
    zeta : float
        ζ, the weight of KL(q_k ‖ v_k)/n_k beside the mean NLL. It replaces `kl_weight`.
    beta : float
        β, the part of the way that the server goes to the clients' mean.
    global_lr : float
        Adam's step size for the means and ρ of v_k.
    steps_per_global : int
        Steps of q_k for each of v_k.
    global_step : str
        copies: clients send v_k. exact: they send q_k, and v is their forward-KL barycentre.
    """

    zeta: Positive = 10.0
    beta: Share = 1.0
    global_lr: Positive = 0.001
    steps_per_global: Count = 5
    global_step: Literal["copies", "exact"] = "copies"

    unused = ("prior", "prior_std", "kl_weight")
    remembers = True

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train q_k and v_k in turns, an epoch of the one and its steps of the other."""
        pairs = Posterior.from_state_dict(received).log_var
        own = {name + end for name in pairs for end in (MEAN_SUFFIX, LOG_VAR_SUFFIX)}
        local.load({**received, **{name: kept[name] for name in own & kept.keys()}})
        copy = GlobalCopy(received, list(pairs), self.global_lr)
        epochs = local.training.epochs
        epoch = replace(local.training, epochs=1, kl_weight=self.zeta)
        steps = epochs * math.ceil(len(local.x) / epoch.batch_size) / self.steps_per_global
        metrics: dict[str, float] = {}
        for done in range(epochs):
            turn = replace(local, training=epoch, seed=derive_seed(local.seed, "epoch", done))
            metrics = turn.infer(copy.posterior())
            if self.global_step == "copies":
                due = round(steps * (done + 1) / epochs) - round(steps * done / epochs)
                copy.follow(local.state(), due)
        trained = local.state()
        sent = {} if self.global_step == "exact" else copy.posterior().state_dict()
        return Fitted({n: sent.get(n, t) for n, t in trained.items()}, metrics, trained)

    def personal(self, local: Local, received: Tensors, kept: Tensors) -> Predictive | None:
        """Return the posterior that the client keeps."""
        return Predictive(kept) if kept else None

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Move v towards the clients' copies, or to the barycentre of their own posteriors."""
        model = server.model
        before = Posterior.from_state_dict(model)
        gaussian = {name + end for name in before.log_var for end in (MEAN_SUFFIX, LOG_VAR_SUFFIX)}
        after = weighted_mean(replies, [name for name in model if name not in gaussian])
        if self.global_step == "exact":
            parts = [{name: reply.tensors[name] for name in gaussian} for reply in replies]
            posteriors = [Posterior.from_state_dict(part) for part in parts]
            found = aggregate("FKLB", posteriors, [1.0] * len(posteriors)).state_dict()
        else:
            raw = [Reply(r.client, r.weight, _raw(r.tensors, before.log_var)) for r in replies]
            found = _from_raw(weighted_mean(raw, list(raw[0].tensors)), before.log_var)
        if self.beta < 1:
            old, new = _raw(model, before.log_var), _raw(found, before.log_var)
            mixed = {n: old[n].lerp(new[n].to(old[n]), self.beta) for n in old}
            found = _from_raw(mixed, before.log_var)
        after |= found
        return {name: after[name].to(like.dtype) for name, like in model.items()}, {}


class GlobalCopy:
    """v_k, and Adam's steps on its means and ρ that lower KL(q_k ‖ v_k).

    Parameters
    ----------
    received
        A state dict with v; it is not changed.
    names
        Its Gaussian tensors.
    lr
        Adam's rate.
    """

    def __init__(self, received: Tensors, names: Sequence[str], lr: float) -> None:
        self.names = names
        self._mean = {n: received[n + MEAN_SUFFIX].detach().clone() for n in names}
        self._rho = {n: _rho(received[n + LOG_VAR_SUFFIX]) for n in names}
        self._adam = torch.optim.Adam([*self._mean.values(), *self._rho.values()], lr)

    def posterior(self) -> Posterior:
        """Return v_k, of its Gaussian tensors alone."""
        return Posterior(self._mean, {n: _log_var(rho) for n, rho in self._rho.items()})

    def follow(self, own: Tensors, steps: int) -> None:
        """Take Adam steps that lower KL(q_k ‖ v_k), q_k in a state dict.

        With d = m_v − m_q: ∂/∂m_v = d/σ_v², ∂/∂σ_v = (1 − (σ_q² + d²)/σ_v²)/σ_v, and
        ∂σ/∂ρ = sigmoid(ρ).
        """
        with torch.no_grad():
            for _ in range(steps):
                for n in self.names:
                    mean, rho = self._mean[n], self._rho[n]
                    gap = mean - own[n + MEAN_SUFFIX].to(mean)
                    precision = (-_log_var(rho)).exp()
                    square = own[n + LOG_VAR_SUFFIX].to(rho).exp().add_(gap.square())
                    mean.grad = gap * precision
                    rho.grad = (1 - square * precision) * precision.sqrt() * rho.sigmoid()
                self._adam.step()


def _raw(tensors: Tensors, names: Sequence[str] | Tensors) -> dict[str, Tensor]:
    means = {n + MEAN_SUFFIX: tensors[n + MEAN_SUFFIX] for n in names}
    return means | {n + LOG_VAR_SUFFIX: _rho(tensors[n + LOG_VAR_SUFFIX]) for n in names}


def _from_raw(tensors: Tensors, names: Sequence[str] | Tensors) -> dict[str, Tensor]:
    means = {n + MEAN_SUFFIX: tensors[n + MEAN_SUFFIX] for n in names}
    return means | {n + LOG_VAR_SUFFIX: _log_var(tensors[n + LOG_VAR_SUFFIX]) for n in names}


def _rho(log_var: Tensor) -> Tensor:
    """Return ρ with softplus(ρ) = σ: σ + log(1 − e^−σ)."""
    std = (0.5 * log_var.detach()).exp()
    return std + torch.log(-torch.expm1(-std))


def _log_var(rho: Tensor) -> Tensor:
    """Return 2 log softplus(ρ); far below 0 softplus is the exponential."""
    log_std = torch.where(rho < -15, rho, torch.nn.functional.softplus(rho).log())
    return 2 * log_std
