"""What a step of variational inference makes of the gradient of the mean NLL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from fedbary.gaussian import variance_power
from fedbary.inference import Training
from fedbary.inference._vectors import Gaussians, Momentum


class Update(ABC):
    """A step on the NELBO: points by SGD with momentum, log-variances as a subclass says.

    Parameters
    ----------
    q
        The posterior and its prior: vectors of one client, or a row for each of several.
    training
        Its `kl_weight` is left aside.
    kl_scale
        kl_weight / n_k, or one for each client (K, 1).
    """

    def __init__(self, q: Gaussians, training: Training, kl_scale: float | Tensor) -> None:
        self.q, self.training = q, training
        self.sgd = Momentum(q, training, kl_scale)
        self.half_precision = 0.5 * kl_scale * q.prior_precision
        self.of_entropy = -0.5 * kl_scale

    def begin(self) -> None:
        """Let the gradients be those of the entropy, to which the mean NLL's are to be added."""
        self.q.points.grad.zero_()
        self.q.log_vars.grad[...] = self.of_entropy

    def end(self, rate: float | Tensor) -> None:
        """Take the step, the log-variances' at a rate, which of several clients is (1,)."""
        self.q.points.value.sub_(self.sgd.update(), alpha=self.training.lr)
        if self.q.log_vars.value.numel() and self.training.log_var_lr > 0:
            var = variance_power(self.q.log_vars.value, 1)
            self.move(self.q.log_vars.grad.addcmul_(var, self.half_precision), rate)

    def finish(self) -> Any:
        """Return KL(q ‖ prior) after the last step, in nats."""
        return self.q.kl()

    @abstractmethod
    def rate(self, step: int) -> float:
        """Return the rate of the log-variances in a step, counted from 1."""

    @abstractmethod
    def move(self, grad: Tensor, rate: float | Tensor) -> None:
        """Let the log-variances, whose gradient this is, take their step."""
