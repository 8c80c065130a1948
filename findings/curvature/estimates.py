"""Other estimates of the curvature that weighs the means, with the same steps."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from fedbary.seeds import derive_seed
from findings.curvature.side_by_side import SideBySide, Weights

_STEP = 1e-3
"""The length of a finite difference, for directions of signs."""


class DrawnLabels(SideBySide):
    """The Fisher information by squared gradients of batches, at labels that the network draws."""

    def _curvature(self, weights: Weights, x: Tensor, seed: int) -> Weights:
        draws, total = Generator().manual_seed(derive_seed(seed, "curvature")), _zeros(weights)
        order = torch.randperm(len(x), generator=draws)
        for rows in order.split(self.federation.settings.local.batch_size):
            logits, gradients = self.outputs(weights, x[rows])
            probs = logits.softmax(2)
            labels = torch.multinomial(probs.flatten(0, 1), 1, generator=draws)
            drawn = one_hot(labels.view(probs.shape[:2]), probs.shape[2])
            for t, g in zip(total, gradients(probs - drawn), strict=True):
                t.addcmul_(g, g)
        return [t / len(x) for t in total]


class Exact(SideBySide):
    """The diagonal of the generalised Gauss-Newton matrix, without draws."""

    def _curvature(self, weights: Weights, x: Tensor, seed: int) -> Weights:
        hidden, bias, output, _ = weights
        entering = torch.stack([
            (x @ hidden[:, i] + bias[i]).clamp_min(0) for i in range(len(bias))
        ])  # fmt: skip
        probs = self.outputs(weights, x)[0].softmax(2)
        of_output = probs * (1 - probs)
        below = probs @ output.square().mT - (probs @ output.mT).square()
        below = below.clamp_min(0) * (entering > 0)
        found = [
            torch.einsum("np,mnu->pmu", x.square(), below), below.sum(1),
            entering.square().mT @ of_output, of_output.sum(1),
        ]  # fmt: skip
        return [t / len(x) for t in found]


class Hutchinson(SideBySide):
    """The diagonal of the Hessian, v ⊙ Hv with random signs v at every batch; at least 0."""

    def _curvature(self, weights: Weights, x: Tensor, seed: int) -> Weights:
        return [t.clamp_min(0) for t in self.diagonal(weights, x, seed)]

    def diagonal(self, weights: Weights, x: Tensor, seed: int) -> Weights:
        """Return the estimate before it is clamped, which is unbiased."""
        draws, total = Generator().manual_seed(derive_seed(seed, "curvature")), _zeros(weights)
        labels = next(y for own, y in self.data if own is x)
        targets = one_hot(labels, self.weights[-1].shape[1]).float()
        order = torch.randperm(len(x), generator=draws)
        for rows in order.split(self.federation.settings.local.batch_size):
            signs = [torch.randint(2, t.shape, generator=draws) * 2.0 - 1 for t in weights]
            ends = []
            for way in (_STEP, -_STEP):
                moved = [w + way * v for w, v in zip(weights, signs, strict=True)]
                logits, gradients = self.outputs(moved, x[rows])
                ends.append(gradients(logits.softmax(2) - targets[rows]))
            for t, v, up, down in zip(total, signs, *ends, strict=True):
                t += v * (up - down) / (2 * _STEP)
        return [t / len(x) for t in total]


class Free(SideBySide):
    """The variance of the training gradients of the last epoch, times the batch: no pass more."""

    def _fit(
        self, x: Tensor, y: Tensor, seed: int, decay: Weights, shift: Weights
    ) -> tuple[Weights, Weights]:
        self.squares, self.sums = _zeros(self.weights), _zeros(self.weights)
        self.steps, size = 0, self.federation.settings.local.batch_size
        self.last = (self.federation.settings.local.local_epochs - 1) * -(-len(x) // size)
        return super()._fit(x, y, seed, decay, shift)

    def outputs(self, weights: Weights, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Weights]]:
        """Return logits and what takes slopes, whose results it counts in the last epoch."""
        logits, gradients = super().outputs(weights, x)

        def seen(slopes: Tensor) -> Weights:
            found = gradients(slopes)
            self.steps += 1
            if self.steps > self.last:
                for s, t, g in zip(self.squares, self.sums, found, strict=True):
                    s.addcmul_(g, g)
                    t += g
            return found

        return logits, seen

    def _curvature(self, weights: Weights, x: Tensor, seed: int) -> Weights:
        size, steps = self.federation.settings.local.batch_size, self.steps - self.last
        each = zip(self.squares, self.sums, strict=True)
        return [size * (s - t.square() / steps) / max(steps - 1, 1) for s, t in each]


def _zeros(weights: Weights) -> Weights:
    return [torch.zeros_like(t) for t in weights]
