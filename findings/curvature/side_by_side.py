"""Federations of a one-layer perceptron that differ in steps and weights, side by side.

All have the same splits, first weights and batches, so a step of all is a few products of matrices.
A round is that of a run of Flower: `tests/docs/test_findings_curvature.py` compares them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul

import torch
from torch import Generator, Tensor
from torch.nn.functional import avg_pool2d, one_hot

from fedbary.data.batches import scale_pixels
from fedbary.methods._server_steps import ServerAdam
from fedbary.seeds import derive_seed
from findings.truth.federation import Federation

Weights = list[Tensor]
"""Hidden weights (inputs, M, units), biases (M, units), and (M, units, classes), (M, classes)."""


@dataclass(frozen=True)
class Member:
    """The steps of one of the federations, its prior's precision, and its method.

    `FedAvg` has means by size, `curvature` by precision; `SCAFFOLD` corrects gradients. `FedAdam`
    takes steps of `server_lr` at the server. First weights are `start` times the network's.
    """

    lr: float
    momentum: float
    lr_schedule: str
    precision: float = 0.0
    method: str = "FedAvg"
    weight_decay: float = 0.0
    server_lr: float = 0.0
    start: float = 1.0


class SideBySide:
    """Several federations between two rounds.

    Parameters
    ----------
    federation
        The first weights, splits and seeds, and the settings that all have. The network has one
        hidden layer and Gaussian weights and biases.
    members
        The federations, all of one method.
    pooled
        Pixels a side that become one. With 1 inputs are what they are, tables too.
    """

    def __init__(self, federation: Federation, members: Sequence[Member], pooled: int) -> None:
        self.federation, self.members, self.pooled = federation, members, pooled
        self.method = members[0].method
        self.data = [(self.inputs(s.x), s.y) for s in federation.shards]
        self.examples = sum(len(y) for _, y in self.data)
        model = federation.model
        hidden, bias, output, last = (
            model.get(f"{layer}.{part}_mean", model.get(f"{layer}.{part}"))
            for layer in ("hidden", "output") for part in ("weight", "bias")
        )  # fmt: skip
        if pooled > 1:
            side = math.isqrt(hidden.shape[1])
            pixels = hidden.view(-1, 1, side, side)
            hidden = pooled**2 * avg_pool2d(pixels, pooled).flatten(1)
        own = hidden.t()[:, None], bias[None], output.t()[None], last[None]
        count = len(members)
        self.weights = [
            t.repeat(1, count, 1) if i == 0 else t.repeat(count, *[1] * (t.dim() - 1))
            for i, t in enumerate(own)
        ]
        start = self._each("start")
        self.weights = [w * _spread(start, i, w) for i, w in enumerate(self.weights)]
        self.controls = [[torch.zeros_like(t) for t in self.weights] for _ in self.data]
        self.moments: dict[str, Tensor] = {}

    def inputs(self, x: Tensor) -> Tensor:
        """Return inputs (N, inputs), of images pooled ones."""
        x = scale_pixels(x)
        return (avg_pool2d(x, self.pooled) if self.pooled > 1 else x).flatten(1)

    def take_round(self) -> None:
        """Let every client of every federation fit, and take the means."""
        here = self.federation
        here.round += 1
        sums = [torch.zeros_like(t, dtype=torch.float64) for t in self.weights]
        totals = [torch.zeros_like(t) for t in sums]
        decay = self._each("weight_decay") + self._each("precision") / self.examples
        shares = [len(y) / self.examples for _, y in self.data]
        common = [sum(map(mul, shares, tensors)) for tensors in zip(*self.controls, strict=True)]
        for client, (x, y) in enumerate(self.data):
            seed = here.task.seed("train", client, here.round)
            shift = [c - own for c, own in zip(common, self.controls[client], strict=True)]
            fitted, gradient = self._fit(x, y, seed, decay, shift)
            if self.method == "SCAFFOLD":
                self.controls[client] = gradient
            curvature = self._curvature(fitted, x, seed) if self.method == "curvature" else None
            for i, tensor in enumerate(fitted):
                weight = torch.full_like(tensor, len(y), dtype=torch.float64)
                if curvature is not None:
                    weight *= curvature[i] + _spread(decay, i, tensor)
                sums[i] += weight * tensor
                totals[i] += weight
        means = [(s / t).float() for s, t in zip(sums, totals, strict=True)]
        self.weights = self._stepped(means) if self.method == "FedAdam" else means

    def _stepped(self, means: Weights) -> Weights:
        """Return the weights after a step of FedAdam towards the clients' means."""
        away = {f"{i}": w - m for i, (w, m) in enumerate(zip(self.weights, means, strict=True))}
        steps, self.moments = ServerAdam(lr=1.0).step(away, self.moments)
        lr = self._each("server_lr")
        return [w - _spread(lr, i, w) * steps[f"{i}"] for i, w in enumerate(self.weights)]

    def logits(self, x: Tensor) -> Tensor:
        """Return logits (M, N, classes) of images."""
        return _forward(self.weights, self.inputs(x))[1]

    def _each(self, name: str) -> Tensor:
        return torch.tensor([float(getattr(member, name)) for member in self.members])

    def _rates(self) -> tuple[Tensor, Tensor]:
        """Return each federation's step size in the round, and its momentum."""
        rounds = self.federation.settings.rounds
        falling = 0.5 * (1 + math.cos(math.pi * (self.federation.round - 1) / rounds))
        cosine = torch.tensor([member.lr_schedule == "cosine" for member in self.members])
        return self._each("lr") * torch.where(cosine, falling, 1.0), self._each("momentum")

    def _batches(self, x: Tensor, y: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of a client's round, and the labels as one-hot rows."""
        by, order = self.federation.settings.local, Generator().manual_seed(seed)
        targets = one_hot(y, self.weights[3].shape[1]).float()
        for _ in range(by.local_epochs):
            for rows in torch.randperm(len(x), generator=order).split(by.batch_size):
                yield x[rows], targets[rows]

    def _fit(
        self, x: Tensor, y: Tensor, seed: int, decay: Tensor, shift: Weights
    ) -> tuple[Weights, Weights]:
        """Return the weights after a client's steps, and the mean gradient of its loss."""
        lr, momentum = self._rates()
        weights = [t.clone() for t in self.weights]
        velocities, total = ([torch.zeros_like(t) for t in weights] for _ in range(2))
        by_tensor = [[_spread(each, i, w) for i, w in enumerate(weights)]
                     for each in (momentum, decay, -lr)]  # fmt: skip
        batches = [*self._batches(x, y, seed)]
        for rows, targets in batches:
            hidden, logits = _forward(weights, rows)
            slopes = (logits.softmax(2) - targets) / len(rows)
            gradients = _gradients(weights, rows, hidden, slopes)
            each = zip(weights, velocities, gradients, total, shift, *by_tensor, strict=True)
            for w, u, g, t, s, kept, pull, rate in each:
                t += g
                u.mul_(kept).add_(g).add_(s).addcmul_(w, pull)
                w.addcmul_(u, rate)
        return weights, [t / len(batches) for t in total]

    def _curvature(self, weights: Weights, x: Tensor, seed: int) -> Weights:
        """Return an estimate of h, as `fedbary.inference.curvature` makes it of a softmax."""
        draws = Generator().manual_seed(derive_seed(seed, "curvature"))
        total = [torch.zeros_like(t) for t in weights]
        order = torch.randperm(len(x), generator=draws)
        for rows in order.split(self.federation.settings.local.batch_size):
            hidden, logits = _forward(weights, x[rows])
            roots = logits.softmax(2).sqrt()
            signs = torch.randint(2, logits.shape[1:], generator=draws).float() * 2 - 1
            drawn = roots * signs - roots.square() * (roots * signs).sum(2, keepdim=True)
            for t, g in zip(total, _gradients(weights, x[rows], hidden, drawn), strict=True):
                t.addcmul_(g, g)
        return [t / len(x) for t in total]


def _spread(values: Tensor, place: int, like: Tensor) -> Tensor:
    """Return a value of each federation in the shape of a tensor of `Weights`."""
    return values.view(1, -1, 1) if place == 0 else values.view(-1, *[1] * (like.dim() - 1))


def _forward(weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what enters the last layer (M, N, units), and logits (M, N, classes)."""
    hidden, bias, output, last = weights
    through = (x @ hidden.flatten(1)).view(len(x), *bias.shape).transpose(0, 1)
    entering = (through + bias[:, None]).clamp_min(0)
    return entering, torch.baddbmm(last[:, None], entering, output)


def _gradients(weights: Weights, x: Tensor, entering: Tensor, slopes: Tensor) -> Weights:
    """Return gradients by the weights for slopes (M, N, classes) by the logits."""
    hidden, _, output, _ = weights
    below = (slopes @ output.mT) * (entering > 0)
    first = (x.t() @ below.transpose(0, 1).flatten(1)).view_as(hidden)
    return [first, below.sum(1), entering.mT @ slopes, slopes.sum(1)]
