"""Mean-field variational inference by one SGD, on clamped log-variances: BA-BFL's public code.

The objective is that of `variational` with each log-variance ρ clamped wherever it is used,

    s = clamp(ρ, −8, 8),      v = exp(s),      ∂s/∂ρ = 1 where −8 ≤ ρ ≤ 8, else 0,

in the draws, in the KL and in predictions. Means, deterministic tensors and log-variances take the
same steps, new in every round (g is the gradient of the objective, β `momentum`):

    u ← β u + g + weight_decay · θ,      θ ← θ − lr u      (of log-variances: − log_var_lr u).

Messages hold ρ, and the server aggregates ρ. The code initialises ρ at −9, below the clamp, where
data and KL have no gradient. Weight decay alone moves it, by about −weight_decay · log_var_lr / (1
− β) · ρ a step, until it passes −8. Biases of variational layers start at 0.

Reference: the public code of BA-BFL (Jamoussi et al.).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedbary.inference import Local, PosteriorParameters, Training
from fedbary.inference._steps import Update, Vectors, inferred
from fedbary.variational.layers import VARIATIONAL

LOG_VAR_RANGE = (-8.0, 8.0)
"""The range to which log-variances are clamped when they are used."""

Parameters = PosteriorParameters


def prepare(model: nn.Module) -> None:
    """Let variational layers draw with clamped log-variances and start with biases of 0."""
    for layer in model.modules():
        if isinstance(layer, VARIATIONAL):
            layer.log_var_range = LOG_VAR_RANGE
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def fit(local: Local) -> dict[str, float]:
    """Minimise the NELBO over the model's posterior, in place; the module's text has the formulas.

    As `fedbary.inference.variational.fit`, except that `training.log_var_lr` is SGD's rate of the
    log-variances, the code's is `training.lr`; 0 freezes them. The `kl` is that of the clamped
    log-variances.
    """
    return inferred(local, ClampedUpdate, local.training.kl_weight / len(local.x))


class ClampedUpdate(Update):
    """The update whose log-variances are clamped in use and take SGD's steps."""

    def __init__(self, q: Vectors, training: Training, kl_scale: float) -> None:
        super().__init__(q, training, kl_scale)
        self.raw, self.velocity = q.log_vars.value.clone(), torch.zeros_like(q.log_vars.value)

    def begin(self) -> None:
        """Clamp the log-variances; then as every update."""
        torch.clamp(self.raw, *LOG_VAR_RANGE, out=self.q.log_vars.value)
        super().begin()

    def rate(self, step: int) -> float:
        """Return `log_var_lr`."""
        return self.training.log_var_lr

    def move(self, grad: Tensor, rate: float) -> None:
        """Take SGD's step; its rate is the same in all."""
        grad.mul_(self.raw == self.q.log_vars.value)
        grad.add_(self.raw, alpha=self.training.weight_decay)
        velocity = self.velocity.mul_(self.training.momentum).add_(grad)
        self.raw.sub_(velocity, alpha=self.training.log_var_lr)

    def finish(self) -> float:
        """Return the KL of the clamped log-variances, and let q hold them as they are."""
        torch.clamp(self.raw, *LOG_VAR_RANGE, out=self.q.log_vars.value)
        kl = super().finish()
        self.q.log_vars.value.copy_(self.raw)
        return kl
