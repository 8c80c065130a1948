"""Regressions: standardisation, and the noise in the target from sums that add over clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedbary.data import standardise
from fedbary.predictive.predictor import Forecast
from fedbary.variational.regressor import moments

MIN_NOISE_SHARE = 0.01
"""Least fraction of the mean squared error that is taken for noise."""


@dataclass(frozen=True)
class NoiseSums:
    """A client's sums on the noise: count, squared errors, spread."""

    count: int
    squares: float
    spread: float

    def __add__(self, other: NoiseSums) -> NoiseSums:
        return NoiseSums(
            self.count + other.count, self.squares + other.squares, self.spread + other.spread
        )

    @property
    def noise_var(self) -> float:
        """Estimate of the noise variance: mean squared error less mean spread, above 0."""
        excess = (self.squares - self.spread) / self.count
        return max(excess, MIN_NOISE_SHARE * self.squares / self.count)


@torch.no_grad()
def noise_sums(
    networks: Mapping[str, Tensor], x: Tensor, y: Tensor, own: int | None = None
) -> NoiseSums:
    """Sum up the errors of the other clients' networks on a client's training data.

    A network fits the noise in its own data, so its residuals there are too small. The other
    clients' networks have not seen these rows since they were last averaged. Let ȳ and s² be the
    mean and the variance of their answers. Then (y − ȳ)² is about the noise variance plus s².

    Parameters
    ----------
    networks
        All clients' networks, stacked: (K, *shape).
    x, y
        The client's standardised features (n, D) and targets (n,).
    own
        Index of the network that was trained on these rows and is left out; None if there is no
        such network, or no other one.
    """
    clients = len(networks["output.weight"])
    others = [k for k in range(clients) if k != own] or [0]
    answers = moments({name: tensor[others] for name, tensor in networks.items()}, x)[0]
    squares = (y.double() - answers.mean(0)).square().sum()
    return NoiseSums(len(y), float(squares), float(answers.var(0, correction=0).sum()))


@dataclass(frozen=True, eq=False)
class RegressionStandardiser(standardise.Standardiser):
    """Standardises D features and the target, the last of its D + 1 columns.

    The std of a target without spread is 1.
    """

    @classmethod
    def from_sums(cls, sums: standardise.Sums) -> Self:
        """Return the one of columns with those sums."""
        found = super().from_sums(sums)
        found.std[-1] = found.std[-1].nan_to_num(posinf=1.0)
        return found

    def features(self, x: Tensor) -> Tensor:
        """Return (x − mean)/std of features (N, D)."""
        return ((self.filled(x) - self.mean[:-1]) / self.std[:-1]).float()

    def target(self, y: Tensor) -> Tensor:
        """Return (y − mean)/std of targets (N,)."""
        return ((y - self.mean[-1]) / self.std[-1]).float()

    def restore(self, forecast: Forecast) -> Forecast:
        """Return a forecast of standardised targets in the target's own units."""
        return forecast.rescaled(float(self.mean[-1]), float(self.std[-1]))
