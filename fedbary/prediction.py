"""The posterior predictive by Monte Carlo: p(y | x) ≈ mean over draws θ_s of softmax f(x; θ_s)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fedbary.data import inputs
from fedbary.models import BayesianCNN


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class probabilities, and how much of their uncertainty is the data's own.

    The entropy of the mean of the drawn networks' answers splits in two (Depeweg et al. 2018):
    H[mean_s p_s] = mean_s H[p_s] + I(y; θ), aleatoric and epistemic.

    Attributes
    ----------
    probs : Tensor
        Mean probabilities over the drawn networks, (N, classes).
    aleatoric : Tensor
        Mean over the networks of the entropy of each one's answer, (N,), in nats.
    """

    probs: Tensor
    aleatoric: Tensor

    @property
    def entropy(self) -> Tensor:
        """Entropy of the mean probabilities, (N,), in nats: the total uncertainty."""
        return torch.special.entr(self.probs).sum(-1)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of label and weights, (N,), in nats: what more data would remove."""
        return (self.entropy - self.aleatoric).clamp_min(0)


@torch.inference_mode()
def predict(
    model: BayesianCNN, x: Tensor, samples: int, generator: Generator, batch_size: int = 500
) -> Prediction:
    """Predict by the mean softmax of `samples` networks.

    The networks are drawn once, so that the answer for an image does not depend on the images
    beside it. For each batch the deterministic trunk runs once and all networks' heads in one pass.
    A model without variational layers is one network: it is run once.

    Parameters
    ----------
    model
        The network; its device is where the work is done.
    x
        Images (N, C, H, W), uint8 in 0…255 or float.
    samples
        Number of networks drawn, at least 1.
    generator
        Source of the draws, on the model's device.
    batch_size
        Images at a time.
    """
    device = next(model.parameters()).device
    weights = model.sample_head(samples, generator)
    probs, aleatoric = [], []
    for batch in x.split(batch_size):
        features = model.trunk(inputs(batch.to(device)))
        drawn = model.head_logits(features, weights).softmax(-1)
        probs.append(drawn.mean(0))
        aleatoric.append(torch.special.entr(drawn).sum(-1).mean(0))
    return Prediction(torch.cat(probs), torch.cat(aleatoric))
