"""Mean-field variational inference by stochastic gradients.

The client minimises the negative evidence lower bound per example,

    NELBO(q) = E_q[mean NLL] + kl_weight · KL(q ‖ prior) / n_k,

over the means and log-variances of its Gaussian tensors, with one draw of the weights per step.
Deterministic tensors train, too. Means take SGD with momentum. The gradient of a log-variance is of
order 1/n_k, so SGD at the means' rate would leave the log-variances where they start. They take
Adam, whose step does not depend on the gradient's scale. The KL's gradient is added in closed form:

    ∂KL/∂m = (m − m₀)/v₀,      ∂KL/∂(log v) = ½ (v/v₀ − 1).

References: Blundell et al. 2015 (Bayes by backprop); Kingma, Salimans and Welling 2015 (local
reparameterisation); BA-BFL (Jamoussi et al.), eq. 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedbary.inference import Local, PosteriorParameters, Training
from fedbary.inference._steps import Update, Vectors, inferred

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-16
"""Adam's decay rates; its epsilon is tiny because gradients of order 1e-7 are ordinary here."""

Parameters = PosteriorParameters


def fit(local: Local) -> dict[str, float]:
    """Minimise the NELBO over the model's posterior, in place; the module's text has the formulas.

    Parameters
    ----------
    local
        The client's round: network, data, prior, epochs, rates and the weight of the KL.

    Returns
    -------
    dict
        `train_nll`, the mean over the last epoch in nats, and `kl`, KL(q ‖ prior) after it in nats.
    """
    return inferred(local, AdamUpdate, local.training.kl_weight / len(local.x))


class AdamUpdate(Update):
    """The update whose log-variances take Adam's steps."""

    def __init__(self, q: Vectors, training: Training, kl_scale: float) -> None:
        super().__init__(q, training, kl_scale)
        self.first = torch.zeros_like(q.log_vars.value)
        self.second = torch.zeros_like(q.log_vars.value)

    def rate(self, step: int) -> float:
        """Return `log_var_lr` with the correction of the moments' start at 0."""
        return self.training.log_var_lr * math.sqrt(1 - BETA2**step) / (1 - BETA1**step)

    def move(self, grad: Tensor, rate: float) -> None:
        """Take Adam's step."""
        self.first.lerp_(grad, 1 - BETA1)
        self.second.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
        std = self.second.sqrt().add_(EPSILON)
        self.q.log_vars.value.addcdiv_(self.first, std, value=-rate)
