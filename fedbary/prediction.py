"""The posterior predictive by Monte Carlo: p(y | x) ≈ mean over draws θ_s of softmax f(x; θ_s)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fedbary.data import inputs
from fedbary.models import BayesianCNN


@torch.inference_mode()
def predict(
    model: BayesianCNN, x: Tensor, samples: int, generator: Generator, batch_size: int = 500
) -> Tensor:
    """Class probabilities (N, classes), the mean softmax of `samples` networks.

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
    batches = []
    for batch in x.split(batch_size):
        features = model.trunk(inputs(batch.to(device)))
        logits = model.head_logits(features, weights)
        batches.append(logits.softmax(-1).mean(0))
    return torch.cat(batches)
