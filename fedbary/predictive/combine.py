"""One prediction of several networks' answers: their mixture or their product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class probabilities, and how much of their uncertainty is the data's own.

    The entropy of the mean of the networks' answers splits in two (Depeweg et al. 2018):
    H[mean_s p_s] = mean_s H[p_s] + I(y; θ), aleatoric and epistemic.

    Attributes
    ----------
    probs : Tensor
        Probabilities, (N, classes).
    aleatoric : Tensor
        Mean over the networks of the entropy of each one's answer, (N,), in nats.
    """

    probs: Tensor
    aleatoric: Tensor

    @property
    def entropy(self) -> Tensor:
        """Entropy of the probabilities, (N,), in nats: the total uncertainty."""
        return torch.special.entr(self.probs).sum(-1)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of label and weights, (N,), in nats: what more data would remove."""
        return (self.entropy - self.aleatoric).clamp_min(0)


@dataclass(frozen=True)
class Pool:
    """How several clients' predictions become one, between their mixture and their product.

    Parameters
    ----------
    each : int
        How many networks each client has, whose mixture is its prediction; they lie in a row.
    beta : float
        From 0, the mixture of the clients' predictions, to 1, the product of experts.
    """

    each: int
    beta: float


@torch.inference_mode()
def mixture(answers: Iterable[Tensor], weights: Sequence[float] | None = None) -> Prediction:
    """Predict by the mean of the networks' probabilities, Σ w_k p_k with w_k summing to 1.

    Parameters
    ----------
    answers
        Logits (networks, batch, classes) of each batch.
    weights
        Of the networks, not negative; equal ones by default.
    """
    probs, aleatoric = [], []
    for logits in answers:
        each = logits.softmax(-1)
        probs.append(_mean(each, weights))
        aleatoric.append(_mean(torch.special.entr(each).sum(-1), weights))
    return Prediction(torch.cat(probs), torch.cat(aleatoric))


@torch.inference_mode()
def product(answers: Iterable[Tensor], weights: Sequence[float] | None = None) -> Prediction:
    """Predict by the normalised product of the networks' probabilities, ∝ Π p_k^w_k.

    Parameters
    ----------
    answers
        Logits (networks, batch, classes) of each batch.
    weights
        The powers, which need not sum to 1: each 1/networks by default, the geometric mean; each 1
        for the product of experts. In `aleatoric` they count by their shares.
    """
    probs, aleatoric = [], []
    for logits in answers:
        logs = logits.log_softmax(-1)
        powers = logs.new_tensor(weights or [1 / len(logs)] * len(logs)).view(-1, 1, 1)
        probs.append((powers * logs).sum(0).softmax(-1))
        aleatoric.append(_mean(torch.special.entr(logs.exp()).sum(-1), weights))
    return Prediction(torch.cat(probs), torch.cat(aleatoric))


@torch.inference_mode()
def pooled(answers: Iterable[Tensor], pool: Pool) -> Prediction:
    """Predict by p ∝ P^β Q^(1−β) of the clients' predictions, see `log_pool`.

    Parameters
    ----------
    answers
        Logits (networks, batch, classes) of each batch, client by client.
    pool
        β, and the networks of a client.
    """
    probs, aleatoric = [], []
    for logits in answers:
        logs = logits.log_softmax(-1)
        by_client = logs.unflatten(0, (-1, pool.each)).logsumexp(1)
        probs.append(log_pool(by_client, pool.beta).exp())
        aleatoric.append(torch.special.entr(logs.exp()).sum(-1).mean(0))
    return Prediction(torch.cat(probs), torch.cat(aleatoric))


def log_pool(log_probs: Tensor, beta: float | Tensor) -> Tensor:
    """Return log p_β, p_β ∝ P^β Q^(1−β) for P ∝ Π p_k and Q = Σ p_k / K (Hasan et al. 2024).

    Parameters
    ----------
    log_probs
        log p_k, (K, N, classes), each up to a number of its own (N, 1).
    beta
        β.

    Returns
    -------
    Tensor
        (N, classes), normalised.
    """
    logs = log_probs.log_softmax(-1)
    product, mixed = logs.sum(0), logs.logsumexp(0)
    return (beta * product + (1 - beta) * mixed).log_softmax(-1)


def _mean(values: Tensor, weights: Sequence[float] | None) -> Tensor:
    """Return the weighted mean over the first dimension."""
    if weights is None:
        return values.mean(0)
    shares = values.new_tensor(weights)
    return torch.tensordot(shares / shares.sum(), values, 1)
