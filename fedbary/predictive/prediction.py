"""Predictions of classes and of numbers, with their uncertainties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor


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
