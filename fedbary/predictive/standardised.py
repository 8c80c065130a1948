"""Standardisation of features and target together, and of forecasts back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedbary.data import standardise
from fedbary.predictive.forecast import Forecast


@dataclass(frozen=True, eq=False)
class RegressionStandardiser(standardise.Standardiser):
    """Standardises D features and the target, the last of its D + 1 columns."""

    def features(self, x: Tensor) -> Tensor:
        """Return (x − mean)/std of features (N, D)."""
        return ((self.filled(x) - self.mean[:-1]) / self.std[:-1]).float()

    def target(self, y: Tensor) -> Tensor:
        """Return (y − mean)/std of targets (N,)."""
        return ((y - self.mean[-1]) / self.std[-1]).float()

    def restore(self, forecast: Forecast) -> Forecast:
        """Return a forecast of standardised targets in the target's own units."""
        return forecast.rescaled(float(self.mean[-1]), float(self.std[-1]))
