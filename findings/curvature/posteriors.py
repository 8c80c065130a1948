"""Federations of Gaussian weights side by side: IVON and variational layers.

Weights are Gaussian, biases are points. A round is that of a run, but for the bound on a rate that
the prior's pull alone would make unstable; it does not bind here. All federations have the same
noise.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Generator, Tensor

from fedbary.inference.variational import BETA1, BETA2, EPSILON
from fedbary.seeds import derive_seed
from fedbary.variational.layers import MIN_STD
from findings.curvature.convolutions import Convolutions
from findings.curvature.side_by_side import SideBySide, Weights

Vars = dict[int, Tensor]
"""Their variances or the logarithms of these, by place."""


class Posteriors(SideBySide):
    """Several federations between two rounds, with the log-variances of their weights.

    KL weight, prior of IVON, first log-variance and their rate are those of the federation's
    settings. Their rule is RKLB, or AALV with means by size.
    """

    @cached_property
    def gaussian(self) -> list[int]:
        """The tensors that are Gaussian in the federation's model."""
        return [i for i in range(len(self.names)) if i not in self.points]

    def take_round(self) -> None:
        """Let every client of every federation fit, and take the barycentres."""
        here = self.federation
        here.round += 1
        if here.round == 1:
            first = here.settings.init_log_var
            self.log_vars = {i: torch.full_like(self.weights[i], first) for i in self.gaussian}
        sums = [torch.zeros_like(t, dtype=torch.float64) for t in self.weights]
        totals = [torch.zeros_like(t) for t in sums]
        averages = {i: torch.zeros_like(sums[i]) for i in self.gaussian}
        by_precision = here.settings.rule == "RKLB"
        for client, (x, y) in enumerate(self.data):
            fitted, log_vars = self._fit_both(x, y, here.task.seed("train", client, here.round))
            share = len(y) / self.examples
            for i, tensor in enumerate(fitted):
                weight = torch.full_like(sums[i], share)
                if i in self.gaussian:
                    averages[i] += share * log_vars[i]
                    if by_precision:
                        weight *= log_vars[i].double().neg().exp()
                sums[i] += weight * tensor
                totals[i] += weight
        self.weights = [(s / t).float() for s, t in zip(sums, totals, strict=True)]
        found = {i: -totals[i].log() for i in self.gaussian} if by_precision else averages
        self.log_vars = {i: log_var.float() for i, log_var in found.items()}

    @abstractmethod
    def _fit_both(self, x: Tensor, y: Tensor, seed: int) -> tuple[Weights, Vars]:
        """Return the weights and log-variances after a client's steps."""


class Ivon(Posteriors):
    """Federations with `inference=ivon`, predicting by their means."""

    def _fit_both(self, x: Tensor, y: Tensor, seed: int) -> tuple[Weights, Vars]:
        by = self.federation.settings.local
        ess, prior = len(x) / by.kl_weight, by.prior_std**-2
        lr, momentum = self._rates()
        weights, velocities = [t.clone() for t in self.weights], [t * 0 for t in self.weights]
        log_vars = {i: t.clone() for i, t in self.log_vars.items()}
        noise = Generator().manual_seed(derive_seed(seed, "noise"))
        for number, (rows, targets) in enumerate(self._batches(x, y, seed), 1):
            var = {i: t.exp() for i, t in log_vars.items()}
            moved = {i: e * var[i].sqrt() for i, e in self._noise(noise).items()}
            drawn = [w + moved[i] if i in self.gaussian else w for i, w in enumerate(weights)]
            logits, slopes = self.outputs(drawn, rows)
            gradients = slopes((logits.softmax(2) - targets) / len(rows))
            for i in self.gaussian:
                change = ess * moved[i] * gradients[i] - 1 + prior * var[i]
                change = (by.log_var_lr * change).clamp(-1, 1)
                log_vars[i] -= change.addcmul(change, change, value=0.5).log1p()
            precisions = [log_vars[i].neg().exp().movedim(self.axes[i], 0) for i in self.gaussian]
            mean = torch.cat([t.flatten(1) for t in precisions], 1).mean(1)
            unbiased = 1 - momentum**number
            for i, (w, u, g) in enumerate(zip(weights, velocities, gradients, strict=True)):
                pull, rate = self._spread("weight_decay", i), self._spread(lr, i)
                if i in self.gaussian:
                    pull = pull + prior / ess
                    gain = (log_vars[i].exp() * self._spread(mean, i)).clamp(max=1)
                    rate = gain * self._spread(lr / unbiased, i)
                u.mul_(self._spread(momentum, i)).add_(g).addcmul_(w, pull)
                w.addcmul_(u, rate, value=-1)
        return weights, log_vars

    def _noise(self, generator: Generator) -> Vars:
        """Return a draw for each Gaussian tensor, in a run's order: outputs first, by layer."""
        shapes = {i: self._one(self.weights[i], i).shape for i in self.gaussian}
        drawn = torch.randn(sum(map(math.prod, shapes.values())), generator=generator)
        parts = zip(shapes.items(), drawn.split([*map(math.prod, shapes.values())]), strict=True)
        return {i: self._several(part.view(shape), i) for (i, shape), part in parts}

    def _one(self, tensor: Tensor, place: int) -> Tensor:
        """Return a tensor of the first federation as it stands in a run."""
        own = tensor.select(self.axes[place], 0)
        return own.t() if own.dim() == 2 else own

    def _several(self, own: Tensor, place: int) -> Tensor:
        """Return a tensor of a run as it stands beside those of other federations."""
        return (own.t() if own.dim() == 2 else own).unsqueeze(self.axes[place])


class IvonOfConvolutions(Ivon, Convolutions):
    """Federations with `inference=ivon` of a network with convolutions."""


class Variational(Posteriors):
    """Federations with `inference=variational`, each with a prior of its own.

    They predict by the mean of `draws` predictions.
    """

    draws = 10

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return log-probabilities (M, N, classes) of images."""
        noise = Generator().manual_seed(derive_seed(self.federation.settings.seed, "scores"))
        x, var = self.inputs(x), {i: t.exp() for i, t in self.log_vars.items()}
        drawn = [
            self._sampled(self.weights, var, x, noise)[0].log_softmax(2) for _ in range(self.draws)
        ]
        return torch.stack(drawn).logsumexp(0) - math.log(self.draws)

    def _fit_both(self, x: Tensor, y: Tensor, seed: int) -> tuple[Weights, Vars]:
        by = self.federation.settings.local
        scale, places = by.kl_weight / len(x), range(len(self.weights))
        lr, momentum = self._rates()
        rates, kept = ([self._spread(each, i) for i in places] for each in (-lr, momentum))
        prior = {i: scale * self._spread("precision", i) for i in self.gaussian}
        decay = [self._spread("weight_decay", i) + prior.get(i, 0) for i in places]
        weights, velocities = [t.clone() for t in self.weights], [t * 0 for t in self.weights]
        log_vars = {i: t.clone() for i, t in self.log_vars.items()}
        first, second = ({i: t * 0 for i, t in log_vars.items()} for _ in range(2))
        noise = Generator().manual_seed(derive_seed(seed, "noise"))
        for number, (rows, targets) in enumerate(self._batches(x, y, seed), 1):
            var = {i: t.exp() for i, t in log_vars.items()}
            logits, slopes = self._sampled(weights, var, rows, noise)
            gradients, by_var = slopes((logits.softmax(2) - targets) / len(rows))
            each = zip(weights, velocities, gradients, kept, decay, rates, strict=True)
            for w, u, g, beta, pull, rate in each:
                u.mul_(beta).add_(g).addcmul_(w, pull)
                w.addcmul_(u, rate)
            rate = by.log_var_lr * math.sqrt(1 - BETA2**number) / (1 - BETA1**number)
            for i in self.gaussian:
                g = var[i] * (by_var[i] + prior[i] / 2) - scale / 2
                first[i].lerp_(g, 1 - BETA1)
                second[i].mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
                log_vars[i].addcdiv_(first[i], second[i].sqrt().add_(EPSILON), value=-rate)
        return weights, log_vars

    def _sampled(
        self, weights: Weights, var: Vars, x: Tensor, noise: Generator
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Weights, Vars]]]:
        """Return logits (M, N, classes) with noise at each output, and what takes slopes by them.

        It returns the slopes by weights, and by their variances.
        """
        hidden, bias, output, last = weights

        def through(x: Tensor, tensor: Tensor) -> Tensor:
            return (x @ tensor.flatten(1)).view(len(x), *bias.shape).transpose(0, 1)

        std = through(x.square(), var[0]).sqrt().clamp_min(MIN_STD)
        unit = torch.randn(std.shape[1:], generator=noise)
        entering = (through(x, hidden) + bias[:, None]).addcmul_(std, unit).clamp_min_(0)
        squares = entering.square()
        std_out = (squares @ var[2]).sqrt().clamp_min(MIN_STD)
        unit_out = torch.randn(std_out.shape[1:], generator=noise)
        logits = torch.baddbmm(last[:, None], entering, output).addcmul_(std_out, unit_out)

        def gradients(slopes: Tensor) -> tuple[Weights, Vars]:
            twice_out = slopes * unit_out / std_out
            below = slopes @ output.mT + (twice_out @ var[2].mT) * entering
            below *= entering > 0
            flat, twice = (t.transpose(0, 1).flatten(1) for t in (below, below * unit / std))
            found = [
                (x.t() @ flat).view_as(hidden), below.sum(1),
                entering.mT @ slopes, slopes.sum(1),
            ]  # fmt: skip
            by_var = {
                0: (x.square().t() @ twice).view_as(hidden) / 2,
                2: squares.mT @ twice_out / 2,
            }
            return found, by_var

        return logits, gradients


class VariationalOfConvolutions(Variational, Convolutions):
    """Federations with `inference=variational` of a network with convolutions.

    Convolutions draw weights, the linear layer its outputs.
    """

    def _sampled(
        self, weights: Weights, var: Vars, x: Tensor, noise: Generator
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Weights, Vars]]]:
        leaves = [t.detach().requires_grad_() for t in weights]
        spread = {i: t.detach().requires_grad_() for i, t in var.items()}

        def found(place: int, product: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
            mean, var = leaves[place], spread[place]
            if mean.dim() == 5:
                drawn = torch.randn(mean.shape[1:], generator=noise)
                return product(x, mean.addcmul(var.sqrt(), drawn))
            std = product(x.square(), var).clamp_min(MIN_STD**2).sqrt()
            return product(x, mean).addcmul(std, torch.randn(std.shape[1:], generator=noise))

        logits = self.through(leaves, x, found)

        def gradients(slopes: Tensor) -> tuple[Weights, Vars]:
            slopes_by = torch.autograd.grad(logits, [*leaves, *spread.values()], slopes)
            by_var = dict(zip(spread, slopes_by[len(leaves) :], strict=True))
            return [*slopes_by[: len(leaves)]], by_var

        return logits.detach(), gradients
