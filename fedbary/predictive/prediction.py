"""Predictions of classes and of numbers, and how several networks' answers make one.

Networks answer a batch with logits (networks, batch, …, classes), or with means and noise variances
(networks, batch). Equal weights are understood.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.variational.regressor import is_linear, moments


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


@dataclass(frozen=True, eq=False)
class Forecast:
    """N(mean, epistemic + aleatoric) for each example.

    Attributes
    ----------
    mean : Tensor
        Expected target, (N,).
    epistemic : Tensor
        Variance from unknown weights, (N,); more data would reduce it.
    aleatoric : Tensor
        Variance of the noise in the target, (N,); 0 where a prediction carries no noise term.
    """

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor

    @property
    def var(self) -> Tensor:
        """Predictive variance, (N,)."""
        return self.epistemic + self.aleatoric

    def rescaled(self, mean: float, std: float) -> Forecast:
        """Return the forecast of mean + std · y, which takes standardised targets back."""
        return Forecast(mean + std * self.mean, std**2 * self.epistemic, std**2 * self.aleatoric)


_Predicted = TypeVar("_Predicted", Prediction, Forecast)


def concatenated(parts: Sequence[_Predicted]) -> _Predicted:
    """Return the prediction of several batches, one after the other."""
    names = [f.name for f in fields(parts[0]) if isinstance(getattr(parts[0], f.name), Tensor)]
    whole: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in names
    }
    return replace(parts[0], **whole)


# Of classes


def mixture(logits: Tensor) -> Prediction:
    """Predict by the mean of the networks' probabilities, Σ p_k / K."""
    each = logits.softmax(-1)
    aleatoric = torch.special.entr(each).sum(-1).mean(0)
    return Prediction(each.mean(0), aleatoric, networks=len(logits))


def product(logits: Tensor) -> Prediction:
    """Predict by the geometric mean of the networks' probabilities, ∝ Π p_k^(1/K)."""
    logs = logits.log_softmax(-1)
    probs = (1 / len(logs) * logs).sum(0).softmax(-1)
    aleatoric = torch.special.entr(logs.exp()).sum(-1).mean(0)
    return Prediction(probs, aleatoric, networks=len(logits))


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
    return (beta * logs.sum(0) + (1 - beta) * logs.logsumexp(0)).log_softmax(-1)


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


# Of numbers


def mixed(means: Tensor, noise_vars: Tensor, noise_var: float = 0.0) -> Forecast:
    """Predict by the first two moments of M networks' answers (FedAG, eqs. 3-5).

    mean = Σ ŷ_m / M, epistemic = Σ ŷ_m² / M − mean², aleatoric = noise_var + Σ v_m / M. v_m is the
    noise variance that a network itself predicts, 0 if it predicts none. A deep ensemble's moments
    are those of Lakshminarayanan et al. 2017.
    """
    return Forecast(means.mean(0), means.var(0, correction=0), noise_vars.mean(0) + noise_var)


@torch.no_grad()
def forecast(networks: Mapping[str, Tensor], x: Tensor, noise_var: float = 0.0) -> Forecast:
    """Predict by the moments of a `Regressor`'s networks, (M, *shape) by name, see `mixed`.

    The networks are the clients' own (the paper's bootstrap), draws from a posterior, or members of
    an ensemble; x holds standardised features (N, D).
    """
    return mixed(*moments(networks, x), noise_var)


def moments_by_client(means: Tensor, noise_vars: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each client's mixture, (K, N), of networks' (K · each, N)."""
    means, noise_vars = means.unflatten(0, (-1, each)), noise_vars.unflatten(0, (-1, each))
    return means.mean(1), noise_vars.mean(1) + means.var(1, correction=0)


def gaussian_pool(mean: Tensor, var: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Return moments between the product P and the mixture Q of Gaussians (Hasan et al. 2024).

    1/v = β/v_P + (1 − β)/v_Q and m = v (β m_P/v_P + (1 − β) m_Q/v_Q). P has 1/v_P = Σ 1/v_k and m_P
    = v_P Σ m_k/v_k; Q has its own moments.

    Parameters
    ----------
    mean, var
        Mean and variance of each client's prediction, (K, N).
    beta
        β.
    """
    precision_p = (1 / var).sum(0)
    mean_p = (mean / var).sum(0) / precision_p
    mean_q = mean.mean(0)
    precision_q = 1 / (var.mean(0) + mean.var(0, correction=0))
    precision = beta * precision_p + (1 - beta) * precision_q
    weighted = beta * mean_p * precision_p + (1 - beta) * mean_q * precision_q
    return weighted / precision, 1 / precision


@torch.no_grad()
def linear_forecast(posterior: Posterior, x: Tensor, noise_var: float = 0.0) -> Forecast:
    """Predict with a linear model in closed form (FedAG, eq. 6).

    mean = Σ_d m_d x_d + m_b, epistemic = Σ_d v_d x_d² + v_b, aleatoric = noise_var, plus the
    noise variance that the model itself carries.

    Parameters
    ----------
    posterior
        Posterior of a `Regressor` without hidden units; tensors that are not Gaussian have variance
        0.
    x
        Standardised features, (N, D).
    noise_var
        1/β, the variance of the noise.

    Raises
    ------
    SettingError
        If the model has hidden units.
    """
    if not is_linear(posterior.mean):
        raise SettingError("model", "a network with hidden units", "linear, for the closed form")
    point = {name: mean[None] for name, mean in posterior.mean.items()}
    means, noise_vars = moments(point, x)
    design = torch.cat([x, torch.ones_like(x[:, :1])], 1).double()
    variances = [
        posterior.log_var.get(name, torch.full_like(posterior.mean[name], -math.inf)).exp()
        for name in ("output.weight", "output.bias")
    ]
    var = torch.cat([v.flatten() for v in variances]).double()
    return Forecast(means[0], design.square() @ var, noise_vars[0] + noise_var)
