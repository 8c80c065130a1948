"""Rules in closed form: weighted sums of Gaussians in the coordinates of a chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedbary.aggregation.robust import RobustRule
from fedbary.gaussian import (
    Posterior,
    kl_divergence,
    variance_power,
    variance_power_into,
    wasserstein2_squared,
)

AddInPlace = Callable[[Sequence[np.ndarray], np.ndarray, np.ndarray, float, np.ndarray], None]
"""Adds w F(mean, log_var) to the sums: (sums, mean, log_var, w, spare).

All are arrays of one shape and dtype. The last is working memory: its values are arbitrary and may
change.
"""

Divergence = Callable[[Posterior, Posterior], float]
"""D(q, p_k) of an aggregate q and a client's posterior p_k; it is 0 where they are equal."""


@dataclass(frozen=True)
class Rule:
    """A weighted sum of Gaussians N(m_k, v_k) in the coordinates of a chart F.

    The aggregate is F⁻¹(Σ w_k^p F(m_k, log v_k)), with weights w_k that sum to 1. A `relative` rule
    divides the sum by the largest weight before it applies F⁻¹. If every power p is 1 and the rule
    is not relative, it is a quasi-arithmetic mean (BA-BFL, eqs. 9-10). F and F⁻¹ work element by
    element on tensors of one shape and floating dtype. They must not change their arguments.

    Parameters
    ----------
    name : str
        The name it goes by in `RULES`.
    forward : callable
        F: (mean, log_var) to a tuple of coordinates.
    inverse : callable
        F⁻¹: the summed coordinates to (mean, log_var).
    powers : tuple of int
        The power of the weight for each coordinate.
    centred : bool
        True: sums are of means less the first client's mean, in float64. It is for a chart whose
        inverse subtracts sums of squared means. Adding a number to all means must add it to the
        aggregate's.
    relative : bool
        True: the sums are divided by the largest weight, so that its client counts once.
    add : callable, optional
        Does on a CPU what `forward` and a weighted sum do, without temporary arrays; for a rule
        that is not `centred` and whose powers are equal.
    divergence : callable, optional
        The D(q, p_k) whose sum Σ w_k D(q, p_k) the aggregate makes least; none for a rule that is
        no barycentre.
    """

    name: str
    forward: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    inverse: Callable[..., tuple[Tensor, Tensor]]
    powers: tuple[int, ...] = (1, 1)
    centred: bool = False
    relative: bool = False
    add: AddInPlace | None = None
    divergence: Divergence | None = None

    @property
    def is_mean(self) -> bool:
        """Return whether it is a weighted mean in its chart, with weights that sum to 1."""
        return all(power == 1 for power in self.powers) and not self.relative

    def found(self, sums: Sequence[Tensor], largest: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and log-variance at the sums of coordinates, given the largest weight."""
        return self.inverse(*([total / largest for total in sums] if self.relative else sums))


@dataclass(frozen=True)
class JointRule:
    """A rule that is not a sum over clients: it needs all their Gaussians of a weight at once.

    Deterministic tensors are averaged by weight.

    Parameters
    ----------
    name : str
        The name it goes by in `RULES`.
    across : callable
        Takes means and log-variances [clients, weights], and the clients' weights [clients], which
        sum to 1. Returns the aggregate's mean and log-variance [weights]. All are in float64. It
        must not change its arguments, and must return equal Gaussians unchanged.
    """

    name: str
    across: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

    @property
    def is_mean(self) -> bool:
        """Return whether equal posteriors aggregate to themselves."""
        return True


AnyRule = Rule | RobustRule | JointRule
"""Every kind of rule."""


def _same(mean: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor]:
    return mean, log_var


FedAvg = Rule("FedAvg", forward=_same, inverse=_same)
"""FedAvg: the weighted mean of parameters, θ = Σ w θ_k.

For deterministic tensors it is eq. 1 of McMahan et al. (2017). For a Gaussian tensor it averages
the mean and the log-variance, as Flower's FedAvg does. There it equals AALV.

It assumes no posterior: it is for networks without Gaussian weights, `bayesian_layers=0`.

Messages: the network, once each way.

Cost: the server makes one pass over the replies.

Use it for comparison: any other method should be better under the same budget.

Reference: McMahan, Moore, Ramage, Hampson and Agüera y Arcas, Communication-Efficient Learning of
Deep Networks from Decentralized Data, AISTATS 2017.
"""

AALV = replace(FedAvg, name="AALV")
"""AALV, arithmetic average of log-variances: m = Σ w m_k, log v = Σ w log v_k.

The variance is the weighted geometric mean of the clients' variances.

It assumes nothing about the variances: they do not change the mean, which is FedAvg's.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies and sums them, as for FedAvg.

Use it as the baseline of the other rules. Flower's FedAvg does the same to a model whose tensors
are means and log-variances.

Reference: Ozer et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA),
2022.
"""


def _variance(mean: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor]:
    return mean, variance_power(log_var, 1)


def _from_variance(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    return mean, var.log()


EAA = Rule("EAA", forward=_variance, inverse=_from_variance)
"""EAA, empirical arithmetic average: m = Σ w m_k, v = Σ w v_k.

Its variance is the largest among the rules whose variances are means: RKLB ≤ AALV ≤ WB ≤ EAA.

It assumes nothing about the variances: they do not change the mean, which is FedAvg's.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it if a single client with small variances must not give the aggregate small variances.

Reference: Ozer et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA),
2022.
"""

GAA = replace(EAA, name="GAA", powers=(1, 2))
"""GAA, Gaussian arithmetic average, the law of Σ w X_k: m = Σ w m_k, v = Σ w² v_k.

It assumes that clients' errors are independent: their average is then more certain than each of
them. It is not a mean: K equal posteriors give one with 1/K of the variance.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it where clients train from the prior, or for one round. If rounds start from the aggregate, a
client begins with 1/K of its own variance. Variances then fall by the factor Σ w² in every round,
unless training widens them again. The strategy warns once, after three such rounds in a row.

The papers' public code differs from this formula. BA-BFL's divides by Σ w²
(`findings/protocol/normalised_gaa.py`); FVBA's shrinks the prior's variance too.

Reference: Ozer et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA),
2022.
"""


def _std(mean: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor]:
    return mean, variance_power(log_var, 1 / 2)


def _from_std(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    return mean, 2 * std.log()


WB = Rule("WB", forward=_std, inverse=_from_std, divergence=wasserstein2_squared)
"""WB, Wasserstein-2 barycentre: m = Σ w m_k, √v = Σ w √v_k (BA-BFL, eq. 8).

It is argmin_q Σ w_k W₂²(q, p_k).

It assumes nothing about the variances: they do not change the mean, which is FedAvg's.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it to keep clients' variances without weighing means by them. This suits clients with few
examples or different tasks, whose precisions cannot be compared.

Reference: Jamoussi, Serra, Stavrou and Kountouris, Information-Geometric Barycenters for Bayesian
Federated Learning.
"""


def _moments(mean: Tensor, var: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """Return the moments; the spread of the means never lowers the variance below EAA's."""
    spread = (square - mean.square()).clamp(min=0)
    return mean, (var + spread).log()


def _forward_kl(aggregate: Posterior, posterior: Posterior) -> float:
    return kl_divergence(posterior, aggregate)


def _variance_and_square(mean: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return mean, variance_power(log_var, 1), mean.square()


FKLB = Rule(
    "FKLB",
    forward=_variance_and_square,
    inverse=_moments,
    powers=(1, 1, 1),
    centred=True,
    divergence=_forward_kl,
)
"""FKLB, forward-KL barycentre, moments matched to the mixture Σ w N(m_k, v_k).

m = Σ w m_k and v = Σ w v_k + Σ w m_k² − m²: argmin_q Σ w_k KL(p_k || q).

It assumes that any client may be right where they disagree: the spread of their means becomes
variance.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, in float64: squares of means are subtracted.

Use it for one round, or if the result should show where clients disagree. If clients differ,
variances grow from round to round, and predictions become underconfident.

Reference: Ozer et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA),
2022.
"""


def _natural(mean: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor]:
    """Return the natural parameters (m / v, 1 / v)."""
    precision = variance_power(log_var, -1)
    return mean * precision, precision


def _from_natural(shift: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    return shift / precision, -precision.log()


def _add_natural(
    sums: Sequence[np.ndarray],
    mean: np.ndarray,
    log_var: np.ndarray,
    weight: float,
    spare: np.ndarray,
) -> None:
    """Add the weighted natural parameters to their sums; see `AddInPlace`."""
    shift, precision = sums
    variance_power_into(spare, log_var, -1)
    spare *= weight
    precision += spare
    spare *= mean
    shift += spare


RKLB = Rule(
    "RKLB",
    forward=_natural,
    inverse=_from_natural,
    add=_add_natural,
    divergence=kl_divergence,
)
"""RKLB, reverse-KL barycentre: 1/v = Σ w / v_k, m = v Σ w m_k / v_k (BA-BFL, eq. 7).

It is the product of the posteriors to the powers w_k, and argmin_q Σ w_k KL(q || p_k).

It assumes that a client's variances show how certain it is: client k counts by w_k/v_k in the mean.
If all clients have the same variance, the means are FedAvg's.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it as the default. With `kl_weight=share` and posteriors that factorise, it is exactly the
posterior of all data. A client that sends tiny variances decides the aggregate. If clients may be
hostile, set a bound (`max_precision_ratio`).

Reference: Jamoussi, Serra, Stavrou and Kountouris, Information-Geometric Barycenters for Bayesian
Federated Learning.
"""

Conflation = replace(RKLB, name="Conflation", powers=(0, 0), divergence=None)
"""Conflation, the product of the posteriors: 1/v = Σ 1/v_k, m = v Σ m_k/v_k.

N(m, v) ∝ Π_k N(m_k, v_k) (Hill, 2011). Weights are ignored: a client with more data has a larger
precision and so more influence. Deterministic tensors have no precision. They are averaged by
weight, which is the limit of v_k = ε/w_k for ε → 0. The rule is not a mean: K equal posteriors give
one with 1/K of the variance.

It assumes that clients hold different data and that the prior is weak: the prior counts K times.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it for one round, or with a weak prior; the method DWC counts the prior once. If rounds start
from the aggregate, a client begins with 1/K of its own variance. Variances may then fall to 1/K in
every round. The strategy warns once, after three such rounds in a row. DWC's clients begin with
their own variance.

References: Hill, Conflations of Probability Distributions, 2011; Fischer et al., Federated Bayesian
Deep Learning: The Application of Statistical Aggregation Methods to Bayesian Models, 2024.
"""

WeightedConflation = replace(RKLB, name="WeightedConflation", relative=True, divergence=None)
"""Weighted conflation: 1/v = Σ w_k/v_k / max w, m = v Σ w_k m_k/v_k / max w (FVBA's CF).

It is the product Π_k N(m_k, v_k)^(w_k / max w). The client with the most examples counts once, each
other client by the ratio of its number to the largest. The mean is RKLB's, the variance is RKLB's
times max w. With equal weights the rule is conflation.

It assumes what conflation does, and that weights say how much each client knows.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes one pass over the replies, with one exponential per weight and client.

Use it in place of conflation if clients with few examples should narrow the aggregate less than
those with many. Conflation's notes on rounds hold here, too.

References: Hill and Miller, How to Combine Independent Data Sets for the Same Quantity, 2011; Ozer
et al., How to Combine Variational Bayesian Networks in Federated Learning (FVBA), 2022. FVBA's
public code computes these formulas by products of K variances, which underflow; here they are sums.
"""
