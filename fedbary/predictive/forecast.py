"""Gaussian predictions of a number: from networks, from a posterior, or in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.predictive.combine import Pool, gate_logits
from fedbary.variational.regressor import is_linear, moments


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


@torch.no_grad()
def forecast(
    networks: Mapping[str, Tensor], x: Tensor, noise_var: float = 0.0, batch_size: int = 1000
) -> Forecast:
    """Predict by the first two moments of M networks' answers (FedAG, eqs. 3-5).

    mean = Σ ŷ_m / M, epistemic = Σ ŷ_m² / M − mean², aleatoric = noise_var + Σ v_m / M. The
    networks are the clients' own (the paper's bootstrap), draws from a posterior (ordinary Monte
    Carlo), or members of an ensemble. v_m is the noise variance that a network itself predicts, 0
    if it predicts none. A deep ensemble's moments are those of Lakshminarayanan et al. 2017.

    Parameters
    ----------
    networks
        Tensors of a `Regressor` by name, stacked: (M, *shape).
    x
        Standardised features, (N, D).
    noise_var
        Variance of a noise term; 0, the paper's choice for networks, leaves it out.
    batch_size
        Examples at a time.
    """
    return joined([mixed_forecast(networks, batch, noise_var) for batch in x.split(batch_size)])


@torch.no_grad()
def mixed_forecast(networks: Mapping[str, Tensor], x: Tensor, noise_var: float = 0.0) -> Forecast:
    """Predict one batch as `forecast` does."""
    means, noise_vars = moments(networks, x)
    return Forecast(means.mean(0), means.var(0, correction=0), noise_vars.mean(0) + noise_var)


def joined(parts: Sequence[Forecast]) -> Forecast:
    """Return the forecast of several batches, one after the other."""
    return Forecast(
        torch.cat([part.mean for part in parts]),
        torch.cat([part.epistemic for part in parts]),
        torch.cat([part.aleatoric for part in parts]),
    )


@torch.no_grad()
def pooled_forecast(
    networks: Mapping[str, Tensor], x: Tensor, noise_var: float, pool: Pool
) -> Forecast:
    """Predict by `gaussian_pool` of the clients' forecasts; the arguments are those of `forecast`.

    The noise is the networks' mean noise, at most the pooled variance.
    """
    means, noise_vars = moments(networks, x)
    mean, var = gaussian_pool(
        *moments_by_client(means, noise_vars + noise_var, pool.each), torch.tensor(pool.beta)
    )
    aleatoric = torch.minimum(noise_vars.mean(0) + noise_var, var)
    return Forecast(mean, var - aleatoric, aleatoric)


@torch.no_grad()
def gated_forecast(
    networks: Mapping[str, Tensor], x: Tensor, noise_var: float, experts: int
) -> Forecast:
    """Predict by the moments of Σ_j g_j(x) N(ŷ_j, v_j); the last network is the gate.

    The gate's one output is ŷ, so there are at most two experts. The other arguments are those of
    `forecast`.
    """
    means, noise_vars = moments(networks, x)
    shares = gate_logits(means[-1], experts).softmax(-1).T
    means, noise_vars = means[:-1], noise_vars[:-1]
    mean = (shares * means).sum(0)
    epistemic = (shares * (means - mean).square()).sum(0)
    return Forecast(mean, epistemic, (shares * noise_vars).sum(0) + noise_var)


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
