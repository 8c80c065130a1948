"""Federations that differ in steps and weights, side by side.

All have the same splits, first weights and batches, so a step of all is a few products of matrices.
A round is that of a run of Flower: `tests/docs/test_findings_curvature.py` compares them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul

import torch
from torch import Generator, Tensor
from torch.nn.functional import avg_pool2d, one_hot

from fedbary.data.batches import scale_pixels
from fedbary.methods._server_steps import ServerAdam
from fedbary.seeds import derive_seed
from findings.truth.federation import Federation

Weights = list[Tensor]
"""The tensors of M networks. A perceptron's are hidden weights (inputs, M, units), biases
(M, units), and (M, units, classes), (M, classes)."""

_AT_ONCE = 1000
"""Examples whose outputs are found at a time."""


@dataclass(frozen=True)
class Member:
    """The steps of one of the federations, its prior's precision, and its method.

    `FedAvg` has means by size, `curvature` by precision. `SCAFFOLD` corrects gradients, and
    `SCAFFOLD by curvature` does both. `FedAdam` takes steps of `server_lr` at the server. `mu`
    pulls to the global weights, as FedProx does. First weights are `start` times the network's,
    but for those of normalisation.
    """

    lr: float
    momentum: float
    lr_schedule: str
    precision: float = 0.0
    method: str = "FedAvg"
    weight_decay: float = 0.0
    server_lr: float = 0.0
    start: float = 1.0
    mu: float = 0.0


class SideBySide:
    """Several federations of a perceptron with one hidden layer between two rounds.

    Parameters
    ----------
    federation
        The first weights, splits and seeds, and the settings that all have. `curvature` has means
        by precision of what is Gaussian in its network.
    members
        The federations, all of one method.
    pooled
        Pixels a side that become one. With 1 inputs are what they are, tables too.
    """

    axes: Sequence[int] = (1, 0, 0, 0)
    """Where the federations stand in each tensor of `Weights`."""
    layers: Sequence[str] = ("hidden", "output")
    """Names of layers; each has a weight and a bias in `Weights`, in this order."""
    norms: Sequence[int] = ()
    """The tensors of normalisation."""

    def __init__(self, federation: Federation, members: Sequence[Member], pooled: int) -> None:
        self.federation, self.members, self.pooled = federation, members, pooled
        self.method = members[0].method
        self.data = [(self.inputs(s.x), s.y) for s in federation.shards]
        self.examples = sum(len(y) for _, y in self.data)
        self.weights = [
            own.unsqueeze(axis).repeat_interleave(len(members), axis)
            for own, axis in zip(self.begun(), self.axes, strict=True)
        ]
        self.weights = [
            w if i in self.norms else w * self._spread("start", i)
            for i, w in enumerate(self.weights)
        ]
        self.controls = [[torch.zeros_like(t) for t in self.weights] for _ in self.data]
        self.moments: dict[str, Tensor] = {}

    def begun(self) -> Weights:
        """Return the first weights of one network."""
        hidden, bias, output, last = self.means()
        if self.pooled > 1:
            side = math.isqrt(hidden.shape[1])
            pixels = hidden.view(-1, 1, side, side)
            hidden = self.pooled**2 * avg_pool2d(pixels, self.pooled).flatten(1)
        return [hidden.t(), bias, output.t(), last]

    def means(self) -> Weights:
        """Return weight and bias of each layer in the federation's first model."""
        model = self.federation.model
        return [model.get(f"{name}_mean", model.get(name)) for name in self.names]

    @cached_property
    def names(self) -> list[str]:
        """The tensors' names."""
        return [f"{layer}.{part}" for layer in self.layers for part in ("weight", "bias")]

    @cached_property
    def points(self) -> list[int]:
        """The tensors that are not Gaussian in the federation's model."""
        model = self.federation.model
        return [i for i, name in enumerate(self.names) if f"{name}_mean" not in model]

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
        decay = [
            self._spread("weight_decay", i)
            + (0 if i in self.points else self._spread("precision", i) / self.examples)
            for i in range(len(sums))
        ]
        shares = [len(y) / self.examples for _, y in self.data]
        common = [sum(map(mul, shares, tensors)) for tensors in zip(*self.controls, strict=True)]
        for client, (x, y) in enumerate(self.data):
            seed = here.task.seed("train", client, here.round)
            shift = [c - own for c, own in zip(common, self.controls[client], strict=True)]
            fitted, gradient = self._fit(x, y, seed, decay, shift)
            if "SCAFFOLD" in self.method:
                self.controls[client] = gradient
            curvature = self._curvature(fitted, x, seed) if "curvature" in self.method else None
            for i, tensor in enumerate(fitted):
                weight = torch.full_like(tensor, len(y), dtype=torch.float64)
                if curvature is not None and i not in self.points:
                    weight *= curvature[i] + decay[i]
                sums[i] += weight * tensor
                totals[i] += weight
        means = [(s / t).float() for s, t in zip(sums, totals, strict=True)]
        self.weights = self._stepped(means) if self.method == "FedAdam" else means

    def _stepped(self, means: Weights) -> Weights:
        """Return the weights after a step of FedAdam towards the clients' means."""
        away = {f"{i}": w - m for i, (w, m) in enumerate(zip(self.weights, means, strict=True))}
        steps, self.moments = ServerAdam(lr=1.0).step(away, self.moments)
        return [
            w - self._spread("server_lr", i) * steps[f"{i}"] for i, w in enumerate(self.weights)
        ]

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return logits (M, N, classes) of images."""
        parts = self.inputs(x).split(_AT_ONCE)
        return torch.cat([self.outputs(self.weights, part)[0] for part in parts], 1)

    def outputs(self, weights: Weights, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Weights]]:
        """Return logits (M, N, classes), and what takes slopes by them to slopes by weights."""
        hidden, bias, output, last = weights
        through = (x @ hidden.flatten(1)).view(len(x), *bias.shape).transpose(0, 1)
        entering = (through + bias[:, None]).clamp_min(0)

        def gradients(slopes: Tensor) -> Weights:
            below = (slopes @ output.mT) * (entering > 0)
            first = (x.t() @ below.transpose(0, 1).flatten(1)).view_as(hidden)
            return [first, below.sum(1), entering.mT @ slopes, slopes.sum(1)]

        return torch.baddbmm(last[:, None], entering, output), gradients

    def _each(self, name: str) -> Tensor:
        return torch.tensor([float(getattr(member, name)) for member in self.members])

    def _spread(self, values: Tensor | str, place: int) -> Tensor:
        """Return values of the federations, or an attribute, in the shape of a tensor."""
        shape = [1] * self.weights[place].dim()
        shape[self.axes[place]] = -1
        return (self._each(values) if isinstance(values, str) else values).view(shape)

    def _rates(self) -> tuple[Tensor, Tensor]:
        """Return each federation's step size in the round, and its momentum."""
        rounds = self.federation.settings.rounds
        falling = 0.5 * (1 + math.cos(math.pi * (self.federation.round - 1) / rounds))
        cosine = torch.tensor([member.lr_schedule == "cosine" for member in self.members])
        return self._each("lr") * torch.where(cosine, falling, 1.0), self._each("momentum")

    def _batches(self, x: Tensor, y: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of a client's round, and the labels as one-hot rows."""
        by, order = self.federation.settings.local, Generator().manual_seed(seed)
        targets = one_hot(y, self.weights[-1].shape[1]).float()
        for _ in range(by.local_epochs):
            for rows in torch.randperm(len(x), generator=order).split(by.batch_size):
                yield x[rows], targets[rows]

    def _fit(
        self, x: Tensor, y: Tensor, seed: int, decay: Weights, shift: Weights
    ) -> tuple[Weights, Weights]:
        """Return the weights after a client's steps, and the mean gradient of its loss."""
        lr, momentum = self._rates()
        weights = [t.clone() for t in self.weights]
        velocities, total = ([torch.zeros_like(t) for t in weights] for _ in range(2))
        places = range(len(weights))
        prox = [self._spread("mu", i) for i in places]
        shift = [s - mu * w for s, mu, w in zip(shift, prox, weights, strict=True)]
        decay = [pull + mu for pull, mu in zip(decay, prox, strict=True)]
        kept, rate = ([self._spread(each, i) for i in places] for each in (momentum, -lr))
        batches = [*self._batches(x, y, seed)]
        for rows, targets in batches:
            logits, gradients = self.outputs(weights, rows)
            found = gradients((logits.softmax(2) - targets) / len(rows))
            each = zip(weights, velocities, found, total, shift, kept, decay, rate, strict=True)
            for w, u, g, t, s, beta, pull, step in each:
                t += g
                u.mul_(beta).add_(g).add_(s).addcmul_(w, pull)
                w.addcmul_(u, step)
        return weights, [t / len(batches) for t in total]

    def _curvature(self, weights: Weights, x: Tensor, seed: int) -> Weights:
        """Return an estimate of h, as `fedbary.inference.curvature` makes it of a softmax."""
        draws = Generator().manual_seed(derive_seed(seed, "curvature"))
        total = [torch.zeros_like(t) for t in weights]
        order = torch.randperm(len(x), generator=draws)
        for rows in order.split(self.federation.settings.local.batch_size):
            logits, gradients = self.outputs(weights, x[rows])
            roots = logits.softmax(2).sqrt()
            signs = torch.randint(2, logits.shape[1:], generator=draws).float() * 2 - 1
            drawn = roots * signs - roots.square() * (roots * signs).sum(2, keepdim=True)
            for t, g in zip(total, gradients(drawn), strict=True):
                t.addcmul_(g, g)
        return [t / len(x) for t in total]
