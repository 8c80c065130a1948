"""LDA: linear discriminants from clients' sums, in one round, exact under any split.

A client sends three means over its examples: the classes' shares, the features φ by class, and the
products φ φᵀ as a triangle. The server adds these. Class c has n_c examples with mean m_c, m is the
mean of all, and W the scatter within the classes. The model is

    φ | c ~ N(μ_c, Σ),    μ_c ~ N(m, Σ/κ),    Σ ~ inverse Wishart(ν, Ψ),    Ψ = (ν − d − 1) τ I,

with τ = tr S/(n d), S = W + Σ_c n_c κ/(n_c + κ) (m_c − m)(m_c − m)ᵀ. ν maximises the evidence,

    log p = ½ d Σ_c log κ/(κ + n_c) + ½ ν log|Ψ| − ½ (ν + n) log|Ψ + S|
            + log Γ_d(½ (ν + n)) − log Γ_d(½ ν) − ½ n d log π.

κ is a variance component: s² = tr W/(n − C) is the variance within classes, and

    s²/κ = (Σ_c n_c ‖m_c − m‖²/(C − 1) − s²)/n₀,    n₀ = (n − Σ n_c²/n)/(C − 1).

So neither needs held-out labels. The posterior means

    Σ = (Ψ + S)/(ν + n − d − 1),  μ_c = (n_c m_c + κ m)/(n_c + κ),  π_c = (n_c + 1)/(n + C)

give the logits φᵀ Σ⁻¹ μ_c − ½ μ_cᵀ Σ⁻¹ μ_c + log π_c: a linear layer, which is the model.

It assumes that all classes have the same covariance. If features are not Gaussian, probabilities
are too sure: `calibrate=temperature` corrects them, and the log says by how much. One head
predicts, so no epistemic uncertainty is known. There may be fewer examples than features. A class
without examples gets the mean of all.

Messages: the network down; C + C d + d (d + 1)/2 numbers up, once. A further round adds clients
that are new; a client's newest sums replace its earlier ones. The server keeps each client's sums.
With `epsilon` a client adds Gaussian noise to its sums, and the server takes the nearest ones that
examples could have. A client with a memory sends the same noisy sums for the same examples.

Cost: a client pays one pass and n d² products; the server some ten times d³.

Use it on features of a pretrained network, where one round is all there is. It also tells how far
an input lies from every class: the relative Mahalanobis distance.

References: Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, 4.3; Gelman et
al., Bayesian Data Analysis, 3.6, for the prior; Searle et al., Variance Components, for κ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from fedbary.aggregation.covariance import packed, unpacked
from fedbary.data.digest import row_hashes
from fedbary.data.mechanism import Release, noise_multiplier
from fedbary.errors import SettingError
from fedbary.methods._conditions import Unfit, one_class
from fedbary.methods._method import Inherited, Local, Tensors
from fedbary.methods._sites import require_rank, require_whole_counts
from fedbary.methods._sums import (
    FEATURES,
    PRODUCTS,
    SHARES,
    LastLayer,
    SumsMethod,
    by_class,
    private_sums,
    question_of,
    repaired,
    require_near,
    sums_by_class,
)
from fedbary.parts.parameters import NotNegative
from fedbary.predictive.mahalanobis import Background
from fedbary.settings.config import Settings
from fedbary.settings.owners import task_kind
from fedbary.settings.task_words import OfClasses, OfFeatures

Delta = Annotated[float, Field(gt=0, lt=1)]

MOST_KAPPA = 1e6
"""The most examples that the prior of a class's mean counts for: all classes have one mean."""

STRENGTHS = tuple(10 ** (step / 20) for step in range(-40, 121))
"""The values of ν − d − 1 that are tried."""


def of_classes(method: LDA, run: Settings) -> Unfit:
    """Refuse tasks whose targets are numbers."""
    if task_kind(run.task).numbers:
        allowed = f"another for task={run.task}, such as ConjugateGaussian: {method.name} "
        yield "method", f"{allowed}predicts classes"


def of_private_sums(method: LDA, run: Settings) -> Unfit:
    """Refuse with noise what would let sites tell more of their examples than their sums."""
    if not method.epsilon:
        return
    own, classes = run.of_task(OfFeatures), run.of_task(OfClasses)
    if run.rounds > 1:
        yield "rounds", "1 with epsilon: each further round would send the sums with new noise"
    if not task_kind(run.task).private:
        why = "its standardisation takes sums without noise"
        yield "epsilon", f"0 for task={run.task}: {why}"
    elif own.normalise != "none":
        yield "normalise", "none with epsilon: normalisation takes sums without noise"
    if own.features != "all":
        yield "features", "all with epsilon: a projection takes sums without noise"
    if classes.calibrate != "none":
        yield "calibrate", "none with epsilon: a temperature takes scores without noise"
    if classes.conformal is not None:
        yield "conformal", "none with epsilon: sets take scores without noise"
    if classes.group != "none":
        yield "group", "none with epsilon: its noise protects an example, and no group of them"


@dataclass(frozen=True)
class LDA(SumsMethod):
    """Linear discriminants from clients' sums, with their prior by evidence.

    Parameters
    ----------
    epsilon : float
        ε of differential privacy: a client adds noise so that its sums are (ε, δ)-private for each
        of its examples. 0: no noise. It needs `max_norm`, one round, and inputs as they are.
    delta : float
        δ of differential privacy, below one over a client's number of examples.

    Raises
    ------
    SettingError
        If a parameter is out of its range, or there is an `epsilon` without `max_norm`.
    """

    epsilon: NotNegative = 0.0
    delta: Delta = 1e-5

    conditions = (of_classes, one_class, of_private_sums)

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        if self.epsilon and not self.max_norm:
            raise SettingError(
                "max_norm", 0, "above 0 with epsilon: noise protects only bounded sums"
            )

    def sizes(self, features: int, outputs: int) -> Mapping[str, int]:
        """Return how many numbers each of the sums has."""
        triangle = features * (features + 1) // 2
        return {SHARES: outputs, FEATURES: outputs * features, PRODUCTS: triangle}

    def reply_like(self, model: Tensors) -> Tensors:
        """Return the sums of examples of the first class, without features."""
        like = super().reply_like(model)
        return {**like, SHARES: torch.eye(len(like[SHARES])).to(like[SHARES])[0]}

    def relabelled(
        self, means: Tensors, inherited: Inherited, like: Tensors
    ) -> Mapping[str, Tensor]:
        """Return an earlier run's means with a row of zeros for each new class."""
        by_class, zeros = (each[FEATURES].view(len(each[SHARES]), -1) for each in (means, like))
        rows = inherited.laid_out(by_class, zeros).flatten()
        return {**super().relabelled({**means, FEATURES: rows}, inherited, like)}

    def products(self, features: Tensor, y: Tensor, outputs: int) -> Tensors:
        """Return the classes' counts and sums, and the triangle of products."""
        of_class = one_hot(y, outputs).double()
        return {
            SHARES: of_class.sum(0),
            FEATURES: (of_class.T @ features).flatten(),
            PRODUCTS: packed(features.T @ features),
        }

    def released(self, sums: Tensors, local: Local) -> Tensors:
        """Return the sums, with noise where `epsilon` asks for it."""
        if not (self.epsilon and self.max_norm):
            return sums
        if self.delta >= 1 / len(local.x):
            raise SettingError("delta", self.delta, "below one over the examples of every site")
        multiplier = noise_multiplier(self.epsilon, self.delta)
        asked = self.max_norm, self.epsilon, self.delta, {n: len(sums[n]) for n in sorted(sums)}
        release = Release(
            question_of(local, repr(asked)),
            row_hashes(local.x if local.raw is None else local.raw),
            self.epsilon,
            self.delta,
            multiplier,
            lambda: private_sums(sums, self.max_norm, multiplier),
        )
        return local.release(release)

    def require_norm(self, means: Tensors, model: Tensors) -> None:
        """Raise a ValueError if features have a larger mean square than allowed, without noise."""
        if not self.epsilon:
            super().require_norm(means, model)

    def moments(self, count: float, means: Tensors, sites: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return counts (C,), means (C, d) and the scatter (d, d) within the classes."""
        if not (self.epsilon and self.max_norm):
            return by_class(count, means)
        std = math.sqrt(sites) * noise_multiplier(self.epsilon, self.delta) / count
        return repaired(count, means, self.max_norm, std)

    def columns(self, means: Tensors) -> tuple[Tensor, Tensor]:
        """Return mean and mean square (d,) of the features."""
        total = sums_by_class(means).sum(0)
        return total, unpacked(means[PRODUCTS].double(), len(total)).diagonal()

    def gram(self, means: Tensors) -> Tensor:
        """Return the mean of z zᵀ, z = (φ, 1, the classes' indicators)."""
        shares, sums = means[SHARES].double(), sums_by_class(means)
        products = unpacked(means[PRODUCTS].double(), sums.shape[1])
        targets = torch.cat([sums, shares[:, None]], 1)
        total = targets.sum(0)
        one = torch.cat([torch.cat([products, total[None, :-1]]), total[:, None]], 1)
        below = torch.cat([targets, shares.diag()], 1)
        return torch.cat([torch.cat([one, targets.T], 1), below])

    def rescaled(self, means: Tensors, shift: Tensor, scale: Tensor) -> Tensors:
        """Return the means of the same examples whose features φ are (φ − shift)/scale."""
        shares, sums = means[SHARES].double(), sums_by_class(means)
        total = sums.sum(0)
        cross = torch.outer(total, shift)
        products = unpacked(means[PRODUCTS].double(), len(total)) - cross - cross.T
        products = (products + torch.outer(shift, shift)) / torch.outer(scale, scale)
        moved = (sums - torch.outer(shares, shift)) / scale
        return {SHARES: shares, FEATURES: moved.flatten(), PRODUCTS: packed(products)}

    def require_possible(self, means: Tensors, examples: float | None) -> None:
        """Raise a ValueError if no examples have such sums, of so many if that is known."""
        if self.epsilon and self.max_norm:
            if examples is not None:
                multiplier = noise_multiplier(self.epsilon, self.delta)
                require_near(means, self.max_norm, multiplier / examples)
            return
        shares, _, within = by_class(1.0, means)
        if examples is not None:
            require_whole_counts(shares, examples)
            whole = unpacked(means[PRODUCTS].double(), len(within))
            require_rank(within, whole, round(examples) - int((shares > 0).sum()))

    def head(self, count: float, means: Tensors, sites: int) -> LastLayer:
        """Return the discriminants, under the κ and ν of the largest evidence."""
        counts, centres, within = self.moments(count, means, sites)
        mean = (counts[:, None] * centres).sum(0) / count
        between = centres - mean
        kappa = pull(counts, between, within)
        held = (counts * kappa / (counts + kappa)).sqrt()[:, None] * between
        spread = within + held.T @ held
        _, strength = evidence(spread, counts, kappa)
        prior = strength * _scale(spread, count) * torch.eye(len(mean), dtype=torch.float64)
        covariance = (spread + prior) / (count + strength)
        pulled = mean + (counts / (counts + kappa))[:, None] * between
        weight = torch.linalg.solve(covariance, pulled.T).T
        bias = ((counts + 1) / (count + len(counts))).log() - (weight * pulled).sum(1) / 2
        return LastLayer(weight, bias, background(counts, pulled, weight, bias))


def background(counts: Tensor, centres: Tensor, weight: Tensor, bias: Tensor) -> Background:
    """Return the distance to the nearest class, of the discriminants of one covariance Σ.

    Parameters
    ----------
    counts, centres : Tensor
        Examples (C,) and mean μ_c (C, d) of each class.
    weight, bias : Tensor
        Σ⁻¹ μ_c (C, d), and what is added (C,), in the discriminants.
    """
    held = counts > 0
    shares = counts[held] / counts.sum()
    mean = shares @ centres[held]
    apart, along = centres[held] - mean, weight[held] - shares @ weight[held]
    turn = torch.eye(len(counts), dtype=torch.float64)[held]
    turn = turn - shares @ turn
    return Background(turn, -turn @ bias - along @ mean, apart @ along.T, shares)


def pull(counts: Tensor, between: Tensor, within: Tensor) -> float:
    """Return κ, how many examples the prior of a class's mean counts for: a variance component.

    Parameters
    ----------
    counts, between, within : Tensor
        Examples (C,) of each class, its mean's distance (C, d) from the mean of all, and the
        scatter (d, d) within the classes.
    """
    count, classes = float(counts.sum()), int((counts > 0).sum())
    if classes < 2 or count <= classes:
        return 1.0
    noise = float(within.trace()) / (count - classes)
    signal = float((counts * between.square().sum(1)).sum()) / (classes - 1) - noise
    size = (count - float(counts.square().sum()) / count) / (classes - 1)
    return MOST_KAPPA if signal <= size * noise / MOST_KAPPA else max(size * noise / signal, 1e-6)


def evidence(spread: Tensor, counts: Tensor, kappa: float) -> tuple[float, float]:
    """Return the largest log p over ν, in nats, and the ν − d − 1 where it is."""
    d, count = len(spread), float(counts.sum())
    values = torch.linalg.eigvalsh(spread).clamp_min(0)
    strengths = torch.tensor(STRENGTHS, dtype=torch.float64)
    nu, psi = strengths + d + 1, strengths * _scale(spread, count)
    log_p = nu * d / 2 * psi.log() - (nu + count) / 2 * (psi[:, None] + values).log().sum(1)
    log_p += torch.special.multigammaln((nu + count) / 2, d) - torch.special.multigammaln(nu / 2, d)
    log_p += d / 2 * (kappa / (kappa + counts)).log().sum() - count * d / 2 * math.log(math.pi)
    best = int(log_p.argmax())
    return float(log_p[best]), STRENGTHS[best]


def _scale(spread: Tensor, count: float) -> float:
    """Return τ; a number above 0 even where all features are one and the same."""
    return max(float(spread.trace()) / (count * len(spread)), 1e-12)
