"""A step of variational inference, from the gradient of the mean NLL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from fedbary.gaussian import variance_power
from fedbary.inference import Local, Training
from fedbary.inference._steps import Steps
from fedbary.inference.shared.vectors import Momentum, Vectors
from fedbary.variational.noise import drawing


def inferred(
    local: Local, kind: Callable[[Vectors, Training, float], Update], scale: float
) -> dict[str, float]:
    """Take the steps of a round by an update, one draw of the weights each; return its metrics.

    `scale` is what the update makes of n_k and kl_weight: for most kl_weight / n_k.
    """
    q = Vectors(local.model, local.prior)
    update = kind(q, local.training, scale)

    @contextmanager
    def drawn(x: Tensor, y: Tensor) -> Iterator[Tensor]:
        update.begin()
        with drawing(local.model, steps.batches.noise):
            yield local.nll(local.model(x), y)

    steps = Steps(local, q.points, loss=drawn)
    for number, _ in enumerate(steps, 1):
        update.end(update.rate(number))
    return {**steps.metrics, "kl": update.finish()}


class Update(ABC):
    """A step on the NELBO: points by SGD with momentum, log-variances as a subclass says.

    Parameters
    ----------
    q
        The posterior and its prior.
    training
        Its `kl_weight` is left aside.
    kl_scale
        kl_weight / n_k.
    """

    def __init__(self, q: Vectors, training: Training, kl_scale: float) -> None:
        self.q, self.training = q, training
        self.sgd = Momentum(q, training, kl_scale)
        self.half_precision = 0.5 * kl_scale * q.prior_precision
        self.of_entropy = -0.5 * kl_scale

    def begin(self) -> None:
        """Let log-variances have the gradient of the entropy; the mean NLL's is to be added."""
        self.q.log_vars.grad[...] = self.of_entropy

    def end(self, rate: float) -> None:
        """Take the step, the log-variances' at a rate."""
        self.q.points.value.sub_(self.sgd.update(), alpha=self.training.lr)
        if self.q.log_vars.value.numel() and self.training.log_var_lr > 0:
            var = variance_power(self.q.log_vars.value, 1)
            self.move(self.q.log_vars.grad.addcmul_(var, self.half_precision), rate)

    def finish(self) -> float:
        """Return KL(q ‖ prior) after the last step, in nats."""
        return self.q.kl()

    @abstractmethod
    def rate(self, step: int) -> float:
        """Return the rate of the log-variances in a step, counted from 1."""

    @abstractmethod
    def move(self, grad: Tensor, rate: float) -> None:
        """Let the log-variances, whose gradient this is, take their step."""
