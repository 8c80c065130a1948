"""The loop of stochastic gradients: every batch of a client's round, and the gradient there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice

from torch import Tensor

from fedbary.gaussian import variance_power
from fedbary.inference import Local, Training
from fedbary.inference._vectors import Batches, Flat, Momentum, Vectors
from fedbary.variational.noise import drawing

StepLoss = Callable[[Tensor, Tensor], AbstractContextManager[Tensor]]
"""From a batch (x, y) a block with its mean loss, within which the gradient is taken."""


class Steps:
    """The steps of a round: going through it yields each batch (x, y) once its gradient is there.

    The loop over it moves the parameters by their gradients.

    Parameters
    ----------
    local : Local
        The client's round.
    *vectors : Flat
        Parameters whose gradients are 0 before each step.
    loss : callable, optional
        Loss; the default is the mean negative log-likelihood by the network as it is.
    most : int, optional
        Number of steps; the default is those of all epochs.

    Attributes
    ----------
    batches : Batches
        The round's batches, with the generator of its noise.
    """

    def __init__(
        self, local: Local, *vectors: Flat, loss: StepLoss | None = None, most: int | None = None
    ) -> None:
        self.local, self.vectors, self.most = local, vectors, most
        self.loss = self._plain if loss is None else loss
        self.batches = Batches(local.x, local.y, local.training, local.seed, local.augment)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.local.model.train()
        for flat in self.vectors:
            flat.attach()
        for x, y in islice(self.batches, self.most):
            for flat in self.vectors:
                flat.grad.zero_()
            with self.loss(x, y) as loss:
                loss.backward()
            self.batches.count(loss, y)
            yield x, y
        self.local.model.zero_grad(set_to_none=True)

    @property
    def metrics(self) -> dict[str, float]:
        """Return the mean NLL of the last epoch, in nats."""
        return {"train_nll": self.batches.mean_nll}

    def _plain(self, x: Tensor, y: Tensor) -> AbstractContextManager[Tensor]:
        return nullcontext(self.local.nll(self.local.model(x), y))


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
