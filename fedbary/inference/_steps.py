"""The loop of stochastic gradients: every batch of a client's round, and the gradient there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice

from torch import Tensor

from fedbary.inference import Local
from fedbary.inference.shared.vectors import Batches, Flat

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
