"""One prediction from several networks: their mixture, their product, or a gated mixture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedbary.errors import SettingError


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class probabilities, and the aleatoric part of their uncertainty.

    An example with several classes, of pixels or of labels, has probabilities (N, …, classes) and
    uncertainties (N, …).

    The entropy of the networks' mean splits into an aleatoric and an epistemic part (Depeweg et al.
    2018): H[mean_s p_s] = mean_s H[p_s] + I(y; θ).

    Attributes
    ----------
    probs : Tensor
        Probabilities, (N, classes).
    aleatoric : Tensor
        Mean of the entropies of the single networks' probabilities, (N,), in nats.
    distance : Tensor or None
        Relative Mahalanobis distance of the features to the nearest class, (N,); None if the method
        has no Gaussians of features. See `fedbary.predictive.mahalanobis`.
    networks : int
        Number of networks that predict together; 0: not told.
    """

    probs: Tensor
    aleatoric: Tensor
    distance: Tensor | None = None
    networks: int = 0

    @property
    def entropy(self) -> Tensor:
        """Entropy of the probabilities, (N,), in nats: the total uncertainty."""
        return torch.special.entr(self.probs).sum(-1)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of label and weights, (N,), in nats; more data would reduce it.

        It is NaN if one network predicts, which tells nothing of it.
        """
        if self.networks == 1:
            return torch.full_like(self.aleatoric, torch.nan)
        return (self.entropy - self.aleatoric).clamp_min(0)

    def one_by_one(self) -> Prediction:
        """Return the prediction of every pixel or label by itself: probabilities (M, classes)."""
        return replace(self, probs=self.probs.flatten(0, -2), aleatoric=self.aleatoric.flatten())

    def tempered(self, temperature: float) -> Prediction:
        """Return the prediction at a temperature T: probabilities ∝ p^(1/T).

        The two parts of the entropy keep their proportions.

        References
        ----------
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
        """
        if temperature == 1:
            return self
        tiny = torch.finfo(self.probs.dtype).tiny
        probs = (self.probs.clamp_min(tiny).log() / temperature).softmax(-1)
        part = (self.aleatoric / self.entropy.clamp_min(tiny)).clamp_max(1)
        return replace(self, probs=probs, aleatoric=part * torch.special.entr(probs).sum(-1))


@dataclass(frozen=True)
class Pool:
    """Pooling of several clients' predictions, between their mixture and their product.

    Parameters
    ----------
    each : int
        Number of networks of each client, adjacent; their mixture is its prediction.
    beta : float
        From 0, the mixture of the clients' predictions, to 1, the product of experts.
    """

    each: int
    beta: float


@dataclass(frozen=True)
class Gate:
    """A mixture whose weights depend on the input: the last member is the gate of the others.

    Parameters
    ----------
    experts : int
        J; the weights are the softmax of the gate's first J − 1 outputs and a 0.
    """

    experts: int


def pool_from(line: Mapping[str, Any]) -> Pool | Gate:
    """Return the pool or the gate from its fields in a line of metrics.jsonl."""
    return Gate(**line) if "experts" in line else Pool(**line)


def gate_logits(outputs: Tensor, experts: int) -> Tensor:
    """Return the logits (N, experts) of a gate's outputs (N, …).

    Raises
    ------
    SettingError
        If the outputs are fewer than experts − 1.
    """
    outputs = outputs.unsqueeze(1) if outputs.ndim == 1 else outputs.flatten(1)
    if outputs.shape[1] < experts - 1:
        most = outputs.shape[1] + 1
        raise SettingError("centres", experts, f"at most {most}, the network's outputs and one")
    return torch.cat([outputs[:, : experts - 1], torch.zeros_like(outputs[:, :1])], 1)


@torch.inference_mode()
def gated(answers: Iterable[Tensor], votes: Iterable[Tensor]) -> Prediction:
    """Predict by Σ_j g_j(x) p_j(y|x).

    Parameters
    ----------
    answers
        Logits (experts, batch, classes) of each batch.
    votes
        The gate's outputs (1, batch, outputs) of the same batches.
    """
    probs, aleatoric = [], []
    for logits, outputs in zip(answers, votes, strict=True):
        each = logits.softmax(-1)
        shares = gate_logits(outputs[0], len(logits)).softmax(-1).T
        probs.append((shares[..., None] * each).sum(0))
        aleatoric.append((shares * torch.special.entr(each).sum(-1)).sum(0))
    return Prediction(torch.cat(probs), torch.cat(aleatoric), networks=len(logits))


@torch.inference_mode()
def mixture(answers: Iterable[Tensor], weights: Sequence[float] | None = None) -> Prediction:
    """Predict by the mean of the networks' probabilities, Σ w_k p_k with w_k summing to 1.

    Parameters
    ----------
    answers
        Logits (networks, batch, classes) of each batch.
    weights
        Weights of the networks, not negative; equal by default.
    """
    probs, aleatoric = [], []
    for logits in answers:
        each = logits.softmax(-1)
        probs.append(_mean(each, weights))
        aleatoric.append(_mean(torch.special.entr(each).sum(-1), weights))
    return Prediction(torch.cat(probs), torch.cat(aleatoric), networks=len(logits))


@torch.inference_mode()
def product(answers: Iterable[Tensor], weights: Sequence[float] | None = None) -> Prediction:
    """Predict by the normalised product of the networks' probabilities, ∝ Π p_k^w_k.

    Parameters
    ----------
    answers
        Logits (networks, batch, classes) of each batch.
    weights
        The powers w_k, which need not sum to 1. The default is 1/networks for each, the geometric
        mean. With 1 for each it is the product of experts. `aleatoric` weighs by w_k / Σ w_k.
    """
    probs, aleatoric = [], []
    for logits in answers:
        logs = logits.log_softmax(-1)
        powers = logs.new_tensor(weights or [1 / len(logs)] * len(logs))
        powers = powers.view(-1, *[1] * (logs.ndim - 1))
        probs.append((powers * logs).sum(0).softmax(-1))
        aleatoric.append(_mean(torch.special.entr(logs.exp()).sum(-1), weights))
    return Prediction(torch.cat(probs), torch.cat(aleatoric), networks=len(logits))


@torch.inference_mode()
def pooled(
    answers: Iterable[Tensor],
    pool: Pool,
    adjusted: Callable[[Tensor], Tensor] = lambda logits: logits,
) -> Prediction:
    """Predict by p ∝ P^β Q^(1−β) of the clients' predictions, see `log_pool`.

    Parameters
    ----------
    answers
        Logits (networks, batch, classes) of each batch, client by client.
    pool
        β, and the number of networks of a client.
    adjusted
        Function that is applied to log p_β, which is known up to a constant for each example; for
        `aleatoric` to each network's logits. It is applied after pooling: before, its K-th power
        would enter P, for which β was not learned.
    """
    probs, aleatoric = [], []
    for logits in answers:
        by_client = logits.log_softmax(-1).unflatten(0, (-1, pool.each)).logsumexp(1)
        probs.append(adjusted(log_pool(by_client, pool.beta)).softmax(-1))
        each = adjusted(logits).softmax(-1)
        aleatoric.append(torch.special.entr(each).sum(-1).mean(0))
    return Prediction(torch.cat(probs), torch.cat(aleatoric), networks=len(logits))


def log_pool(log_probs: Tensor, beta: float | Tensor) -> Tensor:
    """Return log p_β, p_β ∝ P^β Q^(1−β) for P ∝ Π p_k and Q = Σ p_k / K (Hasan et al. 2024).

    Parameters
    ----------
    log_probs
        log p_k, (K, N, classes), each up to a constant (N, 1).
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
