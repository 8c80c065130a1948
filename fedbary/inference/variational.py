"""Mean-field variational inference by stochastic gradients.

The client minimises the negative evidence lower bound per example,

    NELBO(q) = E_q[mean NLL] + kl_weight · KL(q ‖ prior) / n_k,

over the means and log-variances of its Gaussian tensors, one draw of the weights a step;
deterministic tensors train along. Means take SGD with momentum. The gradient of a log-variance
is of order 1/n_k, so SGD at the means' rate would leave the log-variances where they start; they
take Adam, whose step does not depend on the gradient's scale. The KL is not built as a graph:

    ∂KL/∂m = (m − m₀)/v₀,      ∂KL/∂(log v) = ½ (v/v₀ − 1).

References: Blundell et al. 2015 (Bayes by backprop); Kingma, Salimans and Welling 2015 (local
reparameterisation); BA-BFL (Jamoussi et al.), eq. 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbary.data.batches import Augment
from fedbary.inference import Prior, Training
from fedbary.inference._update import Update
from fedbary.inference._vectors import Batches, Gaussians, Vectors
from fedbary.variational.noise import drawing

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-16
"""Adam's decay rates; its epsilon is tiny because gradients of order 1e-7 are ordinary here."""


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    prior: Prior,
    training: Training,
    seed: int,
    augment: Augment = False,
    nll: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
) -> dict[str, float]:
    """Minimise the NELBO over the model's posterior, in place; the module's text has the formulas.

    Parameters
    ----------
    model
        Called as `model(images)`; its parameters `<name>_mean` and `<name>_log_var` are a Gaussian,
        which its layers draw as `fedbary.variational.noise` says.
    x, y
        The client's images (n_k, C, H, W), uint8 or float, and labels (n_k,), on its device.
    prior
        The prior of the Gaussian tensors: a `Posterior` with their names, or the std of N(0, std²).
    training
        Epochs, rates, the weight of the KL.
    seed
        Source of the order of the examples, of the augmentation and of the draws.
    augment
        Whether to crop and flip the batches (see `fedbary.data.batches.batch_source`).
    nll
        Mean negative log-likelihood of (outputs, targets).

    Returns
    -------
    dict
        `train_nll`, the mean over the last epoch in nats, and `kl`, KL(q ‖ prior) after it in nats.
    """
    q, batches = Vectors(model, prior), Batches(x, y, training, seed, augment)
    update = AdamUpdate(q, training, training.kl_weight / len(x))
    model.train()
    for step, (images, labels) in enumerate(batches, 1):
        update.begin()
        with drawing(model, batches.noise):
            loss = nll(model(images), labels)
        loss.backward()
        batches.count(loss, labels)
        update.end(update.rate(step))
    kl = update.finish()
    model.zero_grad(set_to_none=True)
    return {"train_nll": batches.mean_nll, "kl": kl}


class AdamUpdate(Update):
    """The update whose log-variances take Adam's steps."""

    def __init__(self, q: Gaussians, training: Training, kl_scale: float | Tensor) -> None:
        super().__init__(q, training, kl_scale)
        self.first = torch.zeros_like(q.log_vars.value)
        self.second = torch.zeros_like(q.log_vars.value)

    def rate(self, step: int) -> float:
        """Return `log_var_lr` with the correction of the moments' start at 0."""
        return self.training.log_var_lr * math.sqrt(1 - BETA2**step) / (1 - BETA1**step)

    def move(self, grad: Tensor, rate: float | Tensor) -> None:
        """Take Adam's step."""
        self.first.lerp_(grad, 1 - BETA1)
        self.second.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
        log_var, std = self.q.log_vars.value, self.second.sqrt().add_(EPSILON)
        if isinstance(rate, Tensor):
            log_var.addcdiv_(self.first * rate, std, value=-1)
        else:
            log_var.addcdiv_(self.first, std, value=-rate)


UPDATE = AdamUpdate
