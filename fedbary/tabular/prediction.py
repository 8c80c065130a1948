"""The posterior predictive of rows: p(y | x) ≈ mean over draws θ_s of softmax f(x; θ_s)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fedbary.gaussian import Posterior
from fedbary.predictive import Prediction
from fedbary.regression.forecast import drawn
from fedbary.regression.networks import outputs


@torch.no_grad()
def predict(
    posterior: Posterior, x: Tensor, samples: int, generator: Generator, batch_size: int = 1000
) -> Prediction:
    """Predict by the mean softmax of `samples` networks, or of the one that point weights are.

    The networks are drawn once, so that the answer for a row does not depend on the rows beside it.

    Parameters
    ----------
    posterior
        Of a network of `fedbary.tabular.networks`.
    x
        Standardised features, (N, D).
    samples
        Number of networks drawn, at least 1.
    generator
        Source of the draws.
    batch_size
        Rows at a time.
    """
    networks = drawn(posterior, samples if posterior.log_var else 1, generator)
    probs, aleatoric = [], []
    for batch in x.split(batch_size):
        answers = outputs(networks, batch).softmax(-1)
        probs.append(answers.mean(0))
        aleatoric.append(torch.special.entr(answers).sum(-1).mean(0))
    return Prediction(torch.cat(probs), torch.cat(aleatoric))
